"""The source of the attention kernels (FlashAttention): no matrix of scores in memory, no atomics.

Scores are scaled by log2(e) for exp2. Statistics and accumulators are float32 for all element types.
"""

from __future__ import annotations

#: float32 products by precision
PRECISION = '\nPRECISION = tl.constexpr("{}")\n'

#: whether the forward requests the scores of the next block before the exponentials of this one; whether it reduces
#: rows in parts: a thread of tensor cores holds two columns of each eight, so maxima are two short chains of
#: instructions instead of a long one, and sums stay in their threads until the end
FORWARD_FORM = "\nAHEAD = tl.constexpr({})\nPARTS = tl.constexpr({})\n"
#: which gradients a kernel over blocks of k and v computes; whether it requests both products of a block together, and
#: the scores of the next block before the exponentials of this one
GRADIENTS = (
    "\nKEYS = tl.constexpr({})\nVALUES = tl.constexpr({})"
    "\nTOGETHER = tl.constexpr({})\nAHEAD = tl.constexpr({})\n"
)

#: whether a bias is a mask, and differs between positions of q, and of k; whether the last block of these is incomplete
BIASED = (
    "\nMASK = tl.constexpr({})\nBIAS_I = tl.constexpr({})\nBIAS_J = tl.constexpr({})\nBIAS_STEP = tl.constexpr({})"
    "\nEDGE_I = tl.constexpr({})\nEDGE_J = tl.constexpr({})\n"
)

HELPERS = '''

@triton.jit
def rows_of(
    x, rows, stride, size, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHECK: tl.constexpr
):
    """Rows of a matrix of `size` rows; zeros beyond its edges."""
    channels = tl.arange(0, BLOCK)
    at = x + rows[:, None] * stride + channels[None, :] * STEP
    if CHECK and CHANNELS < BLOCK:
        block = tl.load(at, mask=(rows[:, None] < size) & (channels[None, :] < CHANNELS), other=0.0)
    elif CHECK:
        block = tl.load(at, mask=rows[:, None] < size, other=0.0)
    elif CHANNELS < BLOCK:
        block = tl.load(at, mask=channels[None, :] < CHANNELS, other=0.0)
    else:
        block = tl.load(at)
    return block


@triton.jit
def put_rows(x, rows, stride, size, block, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, CHECK: tl.constexpr):
    """Write rows of a dense matrix of `size` rows."""
    channels = tl.arange(0, BLOCK)
    at = x + rows[:, None] * stride + channels[None, :]
    block = block.to(x.dtype.element_ty)
    if CHECK or CHANNELS < BLOCK:
        tl.store(at, block, mask=(rows[:, None] < size) & (channels[None, :] < CHANNELS))
    else:
        tl.store(at, block)


@triton.jit
def parts_of(
    x, rows, stride, size, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr, STEP: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Rows of a matrix in two parts: the first BLOCK channels, and the others in a block of REST, if that is not 0."""
    rest = 0.0
    if REST:
        rest = rows_of(x + BLOCK * STEP, rows, stride, size, CHANNELS - BLOCK, REST, STEP, CHECK)
    return rows_of(x, rows, stride, size, CHANNELS, BLOCK, STEP, CHECK), rest


@triton.jit
def put_parts(
    x, rows, stride, size, block, rest, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Write rows that are in two parts."""
    put_rows(x, rows, stride, size, block, CHANNELS, BLOCK, CHECK)
    if REST:
        put_rows(x + BLOCK, rows, stride, size, rest, CHANNELS - BLOCK, REST, CHECK)


@triton.jit
def zeros_of(ROWS: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr):
    """Sums for rows in two parts."""
    rest = 0.0
    if REST:
        rest = tl.zeros([ROWS, REST], tl.float32)
    return tl.zeros([ROWS, BLOCK], tl.float32), rest


@triton.jit
def products_of(x, x_rest, y, y_rest, REST: tl.constexpr):
    """The products of rows x and rows y, both in two parts."""
    if REST:  # the smaller product first, since tensor cores are waited for between both
        s = tl.dot(x_rest, tl.trans(y_rest), input_precision=PRECISION)
        s = tl.dot(x, tl.trans(y), s, input_precision=PRECISION)
    else:
        s = tl.dot(x, tl.trans(y), input_precision=PRECISION)
    return s


@triton.jit
def add_rows(sums, sums_rest, weights, x, x_rest, REST: tl.constexpr):
    """Sums, and weighted rows x in two parts added to them."""
    sums = tl.dot(weights, x, sums, input_precision=PRECISION)
    if REST:
        sums_rest = tl.dot(weights, x_rest, sums_rest, input_precision=PRECISION)
    return sums, sums_rest


@triton.jit
def bias_of(bias, i, j, bias_i, rows, columns, CHECK_I: tl.constexpr, CHECK_J: tl.constexpr):
    """What the bias does to the scores of positions i of q and j of k, with sizes of 1 where it repeats: a number to
    add to scaled scores, or, of a mask, a limit of infinity or -infinity. One dimension is loaded as a vector, which
    Triton copies to shared memory beside the loop."""
    if BIAS_I and BIAS_J:
        at = bias + i[:, None] * bias_i + j[None, :] * BIAS_STEP
        if CHECK_I or CHECK_J:
            b = tl.load(at, mask=(i < rows)[:, None] & (j < columns)[None, :], other=0)
        else:
            b = tl.load(at)
    elif BIAS_J:
        at = bias + j * BIAS_STEP
        b = tl.load(at, mask=j < columns, other=0)[None, :] if CHECK_J else tl.load(at)[None, :]
    elif BIAS_I:
        at = bias + i * bias_i
        b = tl.load(at, mask=i < rows, other=0)[:, None] if CHECK_I else tl.load(at)[:, None]
    else:
        b = tl.load(bias + tl.zeros([1, 1], tl.int32))
    if MASK:
        b = tl.where(b != 0, float("inf"), float("-inf"))
    else:
        b = b.to(tl.float32)
    return b


@triton.jit
def scores(
    s, i, j, of_i, of_j, left, right, b, columns, scale, FOLD: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    DOCS: tl.constexpr, BIAS: tl.constexpr, CHECK: tl.constexpr,
):
    """Scores from products of q and k at positions i and j; -inf where a pair takes no part. With FOLD they are not
    scaled yet: the scale is positive, so that the largest one stays the largest, and goes into exp2's multiply-add.
    b: from `bias_of`."""
    if not FOLD:
        s = s * (scale * 1.4426950408889634)
    if BIAS == 1 and FOLD:
        # not s + b / scale, which would become the product's accumulator, and load b outside of the pipeline
        s = tl.fma(b.broadcast_to(s.shape), tl.full(s.shape, 1.0 / scale, tl.float32), s)
    elif BIAS == 1:
        s += b * 1.4426950408889634
    elif BIAS == 2:  # one instruction; a hidden NaN becomes -inf, too
        s = tl.minimum(s, b)
    if CHECK:
        s = tl.where(j < columns, s, float("-inf"))
    if RIGHT:
        s = tl.where(j <= i + right, s, float("-inf"))
    if LEFT:
        s = tl.where(j >= i - left, s, float("-inf"))
    if DOCS:
        s = tl.where(of_i == of_j, s, float("-inf"))
    return s


@triton.jit
def documents_of(docs, at, stride, size):
    """The documents of some positions; 0 beyond the last one."""
    return tl.load(docs + at * stride, mask=at < size, other=0)


@triton.jit
def span(
    begin, count, own, own_step, size, docs, docs_step, before, after, BLOCK: tl.constexpr, STEP: tl.constexpr,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, DOCS: tl.constexpr,
):
    """Which of `size` positions of the other side positions begin … begin + BLOCK, of `count`, take part with: blocks
    of STEP from lo to hi, and from `first` to `last` every pair. before, after: how far a position of the other side
    may be. own, docs: documents of both sides; where they are in order, whole blocks of other ones are left out."""
    lo = 0
    first = 0
    last = size
    hi = size
    if BEFORE:
        lo = min(max(begin - before, 0) // STEP * STEP, size)
        first = tl.cdiv(max(begin + BLOCK - 1 - before, 0), STEP) * STEP
    if AFTER:
        hi = min(max(begin + BLOCK + after, 0), size)
        last = min(max(begin + after + 1, 0), size)
    if DOCS:
        inner = begin + tl.arange(0, BLOCK)
        mine = tl.load(own + inner * own_step, mask=inner < count, other=tl.load(own + begin * own_step))
        lowest = tl.min(mine, 0)
        highest = tl.max(mine, 0)
        low = hi
        high = lo
        found = 0
        for start in range(lo, hi, 1024):
            at = start + tl.arange(0, 1024)
            theirs = documents_of(docs, at, docs_step, hi)
            same = (at < hi) & (theirs >= lowest) & (theirs <= highest)
            low = min(low, tl.min(tl.where(same, at, hi), 0))
            high = max(high, tl.max(tl.where(same, at + 1, lo), 0))
            found += tl.sum(same.to(tl.int32), 0)
        lo = max(lo, low // STEP * STEP)
        hi = high
        first = max(first, tl.cdiv(low, STEP) * STEP)
        if (lowest != highest) | (found != high - low):
            last = lo
    if AFTER or DOCS:
        last = min(last, hi) // STEP * STEP
        if BEFORE or DOCS:
            first = max(min(first, tl.cdiv(hi, STEP) * STEP), lo)
            last = max(first, last)
    else:
        first = min(first, size)
    return lo, first, last, hi


@triton.jit
def query_block(rows, heads, BLOCK_M: tl.constexpr):
    """What one program computes: a block of BLOCK_M positions of q, the longest first, of one head; with the number of
    the head over all batches, the batch, and the head in it."""
    blocks = tl.cdiv(rows, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks
    head = tl.program_id(0) // blocks
    return block, head, (head // heads).to(tl.int64), (head % heads).to(tl.int64)


@triton.jit
def weights_of(s, total, scale, FOLD: tl.constexpr, BIAS: tl.constexpr):
    """exp2 of scores less `total`; FOLD as in `scores`."""
    if FOLD:
        s = s * (scale * 1.4426950408889634)
    s = s - total
    if BIAS == 1:  # where every key has a bias of -1e10, rounding `total` is an error of hundreds
        s = tl.minimum(s, 0.0, propagate_nan=tl.PropagateNan.ALL)
    return tl.exp2(s)
'''

#: the mask of dropout; four neighbours along k's positions share a Philox block
KEPT = '''

@triton.jit
def kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N: tl.constexpr, WHOLE: tl.constexpr):
    """Whether dropout keeps the weights of positions i (of q) and start + [0, BLOCK_N) (of k)."""
    seed = tl.load(rng)
    offset = tl.load(rng + 1)
    first = (head.to(tl.int64) * rows + i.to(tl.int64)) * columns + start
    if WHOLE:  # rows begin at a multiple of four
        block = first[:, None] // 4 + tl.arange(0, BLOCK_N // 4)[None, :]
        a, b, c, d = gf_philox(block, stream, seed, offset)
        words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [block.shape[0], BLOCK_N])
    else:
        index = first[:, None] + tl.arange(0, BLOCK_N)[None, :]
        a, b, c, d = gf_philox(index // 4, stream, seed, offset)
        lane = index % 4
        words = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return gf_uniform(words) < keep
'''

FORWARD = '''

@triton.jit
def attend(
    y, y_rest, m, l, q, q_rest, k, v, i, of_i, lo, hi, k_t, v_t, k_docs, k_docs_t, left, right, bias, bias_i,
    rng, stream, head, rows, columns, scale, keep, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr,
    REST_D: tl.constexpr, BLOCK_DV: tl.constexpr, REST_DV: tl.constexpr, K_STEP: tl.constexpr, V_STEP: tl.constexpr,
    BLOCK_N: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCS: tl.constexpr,
    BIAS: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, CHECK: tl.constexpr,
):
    """Positions lo … hi of k and v added to the result, to the largest score and to the sum of weights."""
    # loops of smaller blocks have too few stages, and those with masks too few registers
    masked: tl.constexpr = BLOCK_D + REST_D <= 128 and (LEFT or RIGHT or DOCS or CHECK)
    early: tl.constexpr = AHEAD and q.shape[0] >= 128 and not masked
    # a multiply-add of the scale would be far off where every key has a large negative bias; m is not scaled then
    exact: tl.constexpr = FOLD and BIAS == 1
    following = 0.0
    if early and BLOCK_D + REST_D > 128:  # of no block, if there is none: rows beyond the last one are not read
        keys, keys_rest = parts_of(k, lo + tl.arange(0, BLOCK_N), k_t, columns, D, BLOCK_D, REST_D, K_STEP, True)
        following = products_of(q, q_rest, keys, keys_rest, REST_D)
    elif early:
        following = tl.zeros([q.shape[0], BLOCK_N], tl.float32)
        if lo < hi:  # in a block of its own, whose shared memory is free again in the loop
            keys, keys_rest = parts_of(k, lo + tl.arange(0, BLOCK_N), k_t, columns, D, BLOCK_D, REST_D, K_STEP, True)
            following = products_of(q, q_rest, keys, keys_rest, REST_D)
    same = 0.0
    if BIAS and not BIAS_J:
        same = bias_of(bias, i, i, bias_i, rows, columns, EDGE_I, False)
    for start in tl.range(lo, hi, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        if early:
            s = following
            at = tl.where(start + BLOCK_N < hi, start + BLOCK_N, start) + tl.arange(0, BLOCK_N)
        else:
            at = j
        keys, keys_rest = parts_of(k, at, k_t, columns, D, BLOCK_D, REST_D, K_STEP, CHECK)
        if not early:
            s = products_of(q, q_rest, keys, keys_rest, REST_D)
        elif not REST_D:
            following = products_of(q, q_rest, keys, keys_rest, REST_D)
        of_j = 0
        if DOCS:
            of_j = documents_of(k_docs, j, k_docs_t, columns)[None, :]
        b = same
        if BIAS and BIAS_J:
            b = bias_of(bias, i, j, bias_i, rows, columns, EDGE_I, CHECK)
        s = scores(
            s, i[:, None], j[None, :], of_i, of_j, left, right, b, columns, scale, FOLD, LEFT, RIGHT, DOCS, BIAS, CHECK
        )
        if PARTS:
            highest = tl.max(tl.max(tl.reshape(s, [s.shape[0], BLOCK_N // 8, 8]), 1), 1)
        else:
            highest = tl.max(s, 1)
        if early and REST_D:  # behind a reader of s, so that Triton waits for both products before the exponentials
            following = products_of(q, q_rest, keys, keys_rest, REST_D)
        if FOLD and not exact:
            highest = highest * (scale * 1.4426950408889634)
        largest = tl.maximum(m, highest)
        known = tl.where(largest == float("-inf"), 0.0, largest)
        if exact:
            p = tl.exp2((s - known[:, None]) * (scale * 1.4426950408889634))
            shrink = tl.exp2((m - known) * (scale * 1.4426950408889634))
        else:
            p = weights_of(s, known[:, None], scale, FOLD, False)
            shrink = tl.exp2(m - known)
        if PARTS:
            l = l * shrink[:, None] + tl.sum(tl.reshape(p, [p.shape[0], BLOCK_N // 8, 8]), 1)
        else:
            l = l * shrink + tl.sum(p, 1)
        m = largest
        if DROPOUT:
            p = tl.where(kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE), p, 0.0)
        values, values_rest = parts_of(v, j, v_t, columns, DV, BLOCK_DV, REST_DV, V_STEP, CHECK)
        if REST_DV:
            y_rest = y_rest * shrink[:, None]
        y, y_rest = add_rows(y * shrink[:, None], y_rest, p.to(values.dtype), values, values_rest, REST_DV)
    return y, y_rest, m, l


@triton.jit
def KERNEL(
    {signature}
):
    block, head, batch, h = query_block(rows, heads, BLOCK_M)
    q += batch * q_b + h * q_h
    k += batch * k_b + h // GROUP * k_h
    v += batch * v_b + h // GROUP * v_h
    if BIAS != 0:
        bias += batch * bias_b + h * bias_h
    i = block * BLOCK_M + tl.arange(0, BLOCK_M)
    queries, rest = parts_of(q, i, q_s, rows, D, BLOCK_D, REST_D, Q_STEP, EDGE_M)
    y, y_rest = zeros_of(BLOCK_M, BLOCK_DV, REST_DV)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M, 8] if PARTS else [BLOCK_M], tl.float32)
    of_i = 0
    if DOCS:
        q_docs += batch * q_docs_b
        k_docs += batch * k_docs_b
        of_i = documents_of(q_docs, i, q_docs_s, rows)[:, None]
    lo, first, last, hi = span(
        block * BLOCK_M, rows, q_docs, q_docs_s, columns, k_docs, k_docs_t, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT,
        DOCS,
    )
    last = last // BLOCK_N * BLOCK_N  # a ragged block has a check
    if LEFT or DOCS:
        y, y_rest, m, l = attend(
            y, y_rest, m, l, queries, rest, k, v, i, of_i, lo, first, k_t, v_t, k_docs, k_docs_t, left, right, bias,
            bias_i, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV,
            K_STEP, V_STEP, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_N,
        )
    y, y_rest, m, l = attend(
        y, y_rest, m, l, queries, rest, k, v, i, of_i, first, last, k_t, v_t, k_docs, k_docs_t, left, right, bias,
        bias_i, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV,
        K_STEP, V_STEP, BLOCK_N, FOLD, False, False, False, BIAS, DROPOUT, WHOLE, False,
    )
    if LEFT or RIGHT or DOCS or EDGE_N:
        y, y_rest, m, l = attend(
            y, y_rest, m, l, queries, rest, k, v, i, of_i, last, hi, k_t, v_t, k_docs, k_docs_t, left, right, bias,
            bias_i, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV,
            K_STEP, V_STEP, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_N,
        )
    if PARTS:
        l = tl.sum(l, 1)
    sum_of = tl.where(l == 0.0, 1.0, l * keep)[:, None]
    if REST_DV:
        y_rest = y_rest / sum_of
    if FOLD and BIAS == 1:
        m = m * (scale * 1.4426950408889634)
    total = tl.where(l == 0.0, 0.0, m * 0.6931471805599453 + tl.log(l))
    sums += head.to(tl.int64) * rows
    tl.store(sums + i, total, mask=i < rows)
    out += (batch * rows * heads + h) * DV
    put_parts(out, i, heads * DV, rows, y / sum_of, y_rest, DV, BLOCK_DV, REST_DV, EDGE_M)
'''

#: dq, and for the other kernels delta = sum(dy * y) of each row
QUERY_GRAD = """

@triton.jit
def add_queries(
    result, result_rest, queries, queries_rest, grads, grads_rest, total, own, k, v, i, of_i, lo, hi, k_t, v_t, k_docs,
    k_docs_t, left, right, bias, bias_i, rng, stream, head, rows, columns, scale, keep, D: tl.constexpr,
    DV: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_DV: tl.constexpr, REST_DV: tl.constexpr,
    K_STEP: tl.constexpr, V_STEP: tl.constexpr, BLOCK_N: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, DOCS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
    CHECK: tl.constexpr,
):
    '''What positions lo … hi of k and v add to dq.'''
    same = 0.0
    if BIAS and not BIAS_J:
        same = bias_of(bias, i, i, bias_i, rows, columns, EDGE_I, False)
    for start in tl.range(lo, hi, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys, keys_rest = parts_of(k, j, k_t, columns, D, BLOCK_D, REST_D, K_STEP, CHECK)
        values, values_rest = parts_of(v, j, v_t, columns, DV, BLOCK_DV, REST_DV, V_STEP, CHECK)
        s = products_of(queries, queries_rest, keys, keys_rest, REST_D)
        of_j = 0
        if DOCS:
            of_j = documents_of(k_docs, j, k_docs_t, columns)[None, :]
        b = same
        if BIAS and BIAS_J:
            b = bias_of(bias, i, j, bias_i, rows, columns, EDGE_I, CHECK)
        s = scores(
            s, i[:, None], j[None, :], of_i, of_j, left, right, b, columns, scale, FOLD, LEFT, RIGHT, DOCS, BIAS, CHECK
        )
        p = weights_of(s, total[:, None], scale, FOLD, BIAS)
        dp = products_of(grads, grads_rest, values, values_rest, REST_DV)
        if DROPOUT:
            dp = tl.where(kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE), dp / keep, 0.0)
        ds = p * (dp - own[:, None])
        result, result_rest = add_rows(result, result_rest, ds.to(keys.dtype), keys, keys_rest, REST_D)
    return result, result_rest


@triton.jit
def KERNEL(
    {signature}
):
    block, head, batch, h = query_block(rows, heads, BLOCK_M)
    dy += batch * dy_b + h * dy_h
    y += batch * y_b + h * y_h
    q += batch * q_b + h * q_h
    k += batch * k_b + h // GROUP * k_h
    v += batch * v_b + h // GROUP * v_h
    if BIAS != 0:
        bias += batch * bias_b + h * bias_h
    i = block * BLOCK_M + tl.arange(0, BLOCK_M)
    grads, grads_rest = parts_of(dy, i, dy_s, rows, DV, BLOCK_DV, REST_DV, DY_STEP, EDGE_M)
    made, made_rest = parts_of(y, i, y_s, rows, DV, BLOCK_DV, REST_DV, Y_STEP, EDGE_M)
    own = tl.sum(grads.to(tl.float32) * made.to(tl.float32), 1)
    if REST_DV:
        own += tl.sum(grads_rest.to(tl.float32) * made_rest.to(tl.float32), 1)
    delta += head.to(tl.int64) * rows
    tl.store(delta + i, own, mask=i < rows)
    sums += head.to(tl.int64) * rows
    total = tl.load(sums + i, mask=i < rows, other=float("inf")) * 1.4426950408889634
    queries, queries_rest = parts_of(q, i, q_s, rows, D, BLOCK_D, REST_D, Q_STEP, EDGE_M)
    result, result_rest = zeros_of(BLOCK_M, BLOCK_D, REST_D)
    of_i = 0
    if DOCS:
        q_docs += batch * q_docs_b
        k_docs += batch * k_docs_b
        of_i = documents_of(q_docs, i, q_docs_s, rows)[:, None]
    lo, first, last, hi = span(
        block * BLOCK_M, rows, q_docs, q_docs_s, columns, k_docs, k_docs_t, left, right, BLOCK_M, BLOCK_N, LEFT, RIGHT,
        DOCS,
    )
    last = last // BLOCK_N * BLOCK_N  # a ragged block has a check
    if LEFT or DOCS:
        result, result_rest = add_queries(
            result, result_rest, queries, queries_rest, grads, grads_rest, total, own, k, v, i, of_i, lo, first, k_t,
            v_t, k_docs, k_docs_t, left, right, bias, bias_i, rng, stream, head, rows, columns, scale, keep, D,
            DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV, K_STEP, V_STEP, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT,
            WHOLE, EDGE_N,
        )
    result, result_rest = add_queries(
        result, result_rest, queries, queries_rest, grads, grads_rest, total, own, k, v, i, of_i, first, last, k_t, v_t,
        k_docs, k_docs_t, left, right, bias, bias_i, rng, stream, head, rows, columns, scale, keep, D, DV,
        BLOCK_D, REST_D, BLOCK_DV, REST_DV, K_STEP, V_STEP, BLOCK_N, FOLD, False, False, False, BIAS, DROPOUT, WHOLE,
        False,
    )
    if LEFT or RIGHT or DOCS or EDGE_N:
        result, result_rest = add_queries(
            result, result_rest, queries, queries_rest, grads, grads_rest, total, own, k, v, i, of_i, last, hi, k_t,
            v_t, k_docs, k_docs_t, left, right, bias, bias_i, rng, stream, head, rows, columns, scale, keep, D,
            DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV, K_STEP, V_STEP, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT,
            WHOLE, EDGE_N,
        )
    dq += batch * dq_b + h * dq_h
    if REST_D:
        result_rest = result_rest * scale
    put_parts(dq, i, dq_s, rows, result * scale, result_rest, D, BLOCK_D, REST_D, EDGE_M)
"""

KEY_GRAD = """

@triton.jit
def add_keys(
    dk_sum, dk_rest, dv_sum, dv_rest, keys, keys_rest, values, values_rest, q, dy, j, of_j, start, lo, hi, q_s, dy_s,
    sums, delta, q_docs, q_docs_s, left, right, bias, bias_i, rng, stream, head, rows, columns, scale, keep,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, REST_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    REST_DV: tl.constexpr, Q_STEP: tl.constexpr, DY_STEP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FOLD: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCS: tl.constexpr, BIAS: tl.constexpr,
    DROPOUT: tl.constexpr, WHOLE: tl.constexpr, CHECK: tl.constexpr,
):
    '''What positions lo … hi of q add to dk (with KEYS) and dv (with VALUES).'''
    same = 0.0
    if BIAS and not BIAS_I:
        same = tl.trans(bias_of(bias, j, j, bias_i, rows, columns, False, EDGE_J))
    following = 0.0
    if AHEAD:  # of no block, if there is none: rows beyond the last one are not read
        queries, queries_rest = parts_of(q, lo + tl.arange(0, BLOCK_M), q_s, rows, D, BLOCK_D, REST_D, Q_STEP, True)
        following = products_of(keys, keys_rest, queries, queries_rest, REST_D)
    for top in tl.range(lo, hi, BLOCK_M):
        i = top + tl.arange(0, BLOCK_M)
        at = i
        if AHEAD:
            at = tl.where(top + BLOCK_M < hi, top + BLOCK_M, top) + tl.arange(0, BLOCK_M)
        queries, queries_rest = parts_of(q, at, q_s, rows, D, BLOCK_D, REST_D, Q_STEP, CHECK)
        grads, grads_rest = parts_of(dy, i, dy_s, rows, DV, BLOCK_DV, REST_DV, DY_STEP, CHECK)
        if CHECK:
            total = tl.load(sums + i, mask=i < rows, other=float("inf"))
        else:
            total = tl.load(sums + i)
        if KEYS:
            own = tl.load(delta + i, mask=i < rows, other=0.0) if CHECK else tl.load(delta + i)
        s = following
        if AHEAD:
            following = products_of(keys, keys_rest, queries, queries_rest, REST_D)
        else:
            s = products_of(keys, keys_rest, queries, queries_rest, REST_D)
        if KEYS and TOGETHER:
            dp = products_of(values, values_rest, grads, grads_rest, REST_DV)
        of_i = 0
        if DOCS:
            of_i = documents_of(q_docs, i, q_docs_s, rows)[None, :]
        b = same
        if BIAS and BIAS_I:
            b = tl.trans(bias_of(bias, i, j, bias_i, rows, columns, CHECK, EDGE_J))
        s = scores(
            s, i[None, :], j[:, None], of_i, of_j, left, right, b, columns, scale, FOLD, LEFT, RIGHT, DOCS, BIAS, False
        )
        p = weights_of(s, total[None, :] * 1.4426950408889634, scale, FOLD, BIAS)
        if KEYS and not TOGETHER:
            dp = products_of(values, values_rest, grads, grads_rest, REST_DV)
        weights = p
        if DROPOUT:
            keeps = tl.trans(kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE))
            weights = tl.where(keeps, p / keep, 0.0)
            if KEYS:
                dp = tl.where(keeps, dp / keep, 0.0)
        if VALUES:
            dv_sum, dv_rest = add_rows(dv_sum, dv_rest, weights.to(grads.dtype), grads, grads_rest, REST_DV)
        if KEYS:
            ds = p * (dp - own[None, :])
            dk_sum, dk_rest = add_rows(dk_sum, dk_rest, ds.to(queries.dtype), queries, queries_rest, REST_D)
    return dk_sum, dk_rest, dv_sum, dv_rest


@triton.jit
def KERNEL(
    {signature}
):
    # one program: BLOCK_N positions of k and v of one of their heads, and all heads of q that share it
    blocks = tl.cdiv(columns, BLOCK_N)
    start = tl.program_id(0) % blocks * BLOCK_N
    shared = tl.program_id(0) // blocks
    batch = (shared // (heads // GROUP)).to(tl.int64)
    of_group = (shared % (heads // GROUP)).to(tl.int64)
    k += batch * k_b + of_group * k_h
    j = start + tl.arange(0, BLOCK_N)
    keys, keys_rest = parts_of(k, j, k_t, columns, D, BLOCK_D, REST_D, K_STEP, EDGE_N)
    values, values_rest = 0.0, 0.0
    dk_sum, dk_rest = 0.0, 0.0
    dv_sum, dv_rest = 0.0, 0.0
    if KEYS:
        v += batch * v_b + of_group * v_h
        values, values_rest = parts_of(v, j, v_t, columns, DV, BLOCK_DV, REST_DV, V_STEP, EDGE_N)
        dk_sum, dk_rest = zeros_of(BLOCK_N, BLOCK_D, REST_D)
    if VALUES:
        dv_sum, dv_rest = zeros_of(BLOCK_N, BLOCK_DV, REST_DV)
    of_j = 0
    if DOCS:
        q_docs += batch * q_docs_b
        k_docs += batch * k_docs_b
        of_j = documents_of(k_docs, j, k_docs_t, columns)[:, None]
    lo, first, last, hi = span(
        start, columns, k_docs, k_docs_t, rows, q_docs, q_docs_s, right, left, BLOCK_N, BLOCK_M, RIGHT, LEFT, DOCS,
    )
    if not SPLIT and (LEFT or RIGHT or DOCS):
        first = hi  # one loop, with masks
    for member in range(GROUP):
        h = of_group * GROUP + member
        head = batch * heads + h
        q_head = q + batch * q_b + h * q_h
        dy_head = dy + batch * dy_b + h * dy_h
        delta_head = 0
        if KEYS:
            delta_head = delta + head * rows
        if BIAS != 0:
            bias_head = bias + batch * bias_b + h * bias_h
        else:
            bias_head = 0
        if LEFT or RIGHT or DOCS:
            dk_sum, dk_rest, dv_sum, dv_rest = add_keys(
                dk_sum, dk_rest, dv_sum, dv_rest, keys, keys_rest, values, values_rest, q_head, dy_head, j, of_j, start,
                lo, first, q_s, dy_s, sums + head * rows, delta_head, q_docs, q_docs_s, left, right, bias_head, bias_i,
                 rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV,
                Q_STEP, DY_STEP, BLOCK_M, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_M,
            )
        if SPLIT or not (LEFT or RIGHT or DOCS):
            dk_sum, dk_rest, dv_sum, dv_rest = add_keys(
                dk_sum, dk_rest, dv_sum, dv_rest, keys, keys_rest, values, values_rest, q_head, dy_head, j, of_j, start,
                first, last, q_s, dy_s, sums + head * rows, delta_head, q_docs, q_docs_s, left, right, bias_head,
                bias_i, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, REST_D, BLOCK_DV,
                REST_DV, Q_STEP, DY_STEP, BLOCK_M, BLOCK_N, FOLD, False, False, False, BIAS, DROPOUT, WHOLE, EDGE_M,
            )
        if SPLIT and (LEFT or DOCS):
            dk_sum, dk_rest, dv_sum, dv_rest = add_keys(
                dk_sum, dk_rest, dv_sum, dv_rest, keys, keys_rest, values, values_rest, q_head, dy_head, j, of_j, start,
                last, hi, q_s, dy_s, sums + head * rows, delta_head, q_docs, q_docs_s, left, right, bias_head, bias_i,
                 rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, REST_D, BLOCK_DV, REST_DV,
                Q_STEP, DY_STEP, BLOCK_M, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_M,
            )
    if KEYS:
        dk += batch * dk_b + of_group * dk_h
        if REST_D:
            dk_rest = dk_rest * scale
        put_parts(dk, j, dk_s, columns, dk_sum * scale, dk_rest, D, BLOCK_D, REST_D, EDGE_N)
    if VALUES:
        dv += batch * dv_b + of_group * dv_h
        put_parts(dv, j, dv_s, columns, dv_sum, dv_rest, DV, BLOCK_DV, REST_DV, EDGE_N)
"""

BIAS_GRAD = """

@triton.jit
def KERNEL(
    {signature}
):
    # one program: a block of the bias; it goes through all batches, heads and positions that share it
    pid = tl.program_id(0)
    across = 1 if SUM_J else tl.cdiv(columns, BLOCK_N)
    down = 1 if SUM_I else tl.cdiv(rows, BLOCK_M)
    column = pid % across * BLOCK_N
    row = pid // across % down * BLOCK_M
    own_head = pid // (across * down) % (1 if SUM_H else heads)
    own_batch = pid // (across * down) // (1 if SUM_H else heads)
    result = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for number in range((batches if SUM_B else 1) * (heads if SUM_H else 1)):
        h = number % heads if SUM_H else own_head
        n = (number // heads if SUM_H else number) if SUM_B else own_batch
        batch = n.to(tl.int64) if SUM_B else own_batch.to(tl.int64)
        head = batch * heads + h
        h = head - batch * heads
        q_head = q + batch * q_b + h * q_h
        dy_head = dy + batch * dy_b + h * dy_h
        k_head = k + batch * k_b + h // GROUP * k_h
        v_head = v + batch * v_b + h // GROUP * v_h
        bias_head = bias + batch * bias_b + h * bias_h
        for top in range(row, rows if SUM_I else row + 1, BLOCK_M):
            i = top + tl.arange(0, BLOCK_M)
            queries, queries_rest = parts_of(q_head, i, q_s, rows, D, BLOCK_D, REST_D, Q_STEP, True)
            grads, grads_rest = parts_of(dy_head, i, dy_s, rows, DV, BLOCK_DV, REST_DV, DY_STEP, True)
            total = tl.load(sums + head * rows + i, mask=i < rows, other=float("inf")) * 1.4426950408889634
            own = tl.load(delta + head * rows + i, mask=i < rows, other=0.0)
            of_i = 0
            if DOCS:
                of_i = documents_of(q_docs + batch * q_docs_b, i, q_docs_s, rows)[:, None]
            for start in range(column, columns if SUM_J else column + 1, BLOCK_N):
                j = start + tl.arange(0, BLOCK_N)
                keys, keys_rest = parts_of(k_head, j, k_t, columns, D, BLOCK_D, REST_D, K_STEP, True)
                values, values_rest = parts_of(v_head, j, v_t, columns, DV, BLOCK_DV, REST_DV, V_STEP, True)
                s = products_of(queries, queries_rest, keys, keys_rest, REST_D)
                of_j = 0
                if DOCS:
                    of_j = documents_of(k_docs + batch * k_docs_b, j, k_docs_t, columns)[None, :]
                b = bias_of(bias_head, i, j, bias_i, rows, columns, True, True)
                s = scores(
                    s, i[:, None], j[None, :], of_i, of_j, left, right, b, columns, scale, False, LEFT, RIGHT, DOCS, 1,
                    True,
                )
                p = weights_of(s, total[:, None], scale, False, 1)
                dp = products_of(grads, grads_rest, values, values_rest, REST_DV)
                if DROPOUT:
                    keeps = kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE)
                    dp = tl.where(keeps, dp / keep, 0.0)
                result += p * (dp - own[:, None])
    if SUM_I:
        result = tl.sum(result, 0, keep_dims=True)
    if SUM_J:
        result = tl.sum(result, 1, keep_dims=True)
    i = row + tl.arange(0, 1 if SUM_I else BLOCK_M)
    j = column + tl.arange(0, 1 if SUM_J else BLOCK_N)
    high = 1 if SUM_I else rows
    wide = 1 if SUM_J else columns
    at = (own_batch * (1 if SUM_H else heads) + own_head).to(tl.int64) * high * wide
    at = dbias + at + i[:, None] * wide + j[None, :]
    tl.store(at, result.to(dbias.dtype.element_ty), mask=(i[:, None] < high) & (j[None, :] < wide))
"""
