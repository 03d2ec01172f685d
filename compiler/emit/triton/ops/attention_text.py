"""The source of the attention kernels (FlashAttention): no matrix of scores in memory, no atomics.

Scores are scaled by log2(e) for exp2. Statistics and accumulators are float32 for all element types.
"""

from __future__ import annotations

#: float32 products by precision
PRECISION = '\nPRECISION = tl.constexpr("{}")\n'

#: whether the forward requests the scores of the next block before the exponentials of this one
REQUESTS = "\nAHEAD = tl.constexpr({})\n"
#: which gradients a kernel over blocks of k and v computes
GRADIENTS = "\nKEYS = tl.constexpr({})\nVALUES = tl.constexpr({})\n"

HELPERS = '''

@triton.jit
def rows_of(
    x, rows, stride, size, CHANNELS: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr, CHECK: tl.constexpr
):
    """Rows of a matrix of `size` rows; zeros beyond its edges."""
    channels = tl.arange(0, BLOCK)
    at = x + rows[:, None] * stride + channels[None, :] * STEP
    if CHECK and CHANNELS != BLOCK:
        block = tl.load(at, mask=(rows[:, None] < size) & (channels[None, :] < CHANNELS), other=0.0)
    elif CHECK:
        block = tl.load(at, mask=rows[:, None] < size, other=0.0)
    elif CHANNELS != BLOCK:
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
    if CHECK or CHANNELS != BLOCK:
        tl.store(at, block, mask=(rows[:, None] < size) & (channels[None, :] < CHANNELS))
    else:
        tl.store(at, block)


@triton.jit
def scores(
    s, i, j, of_i, of_j, left, right, bias, bias_i, bias_j, rows, columns, scale, FOLD: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCS: tl.constexpr, BIAS: tl.constexpr, CHECK: tl.constexpr,
):
    """Scores from products of q and k at positions i and j; -inf where a pair takes no part. With FOLD they are not
    scaled yet: the scale is positive, so that the largest one stays the largest, and goes into exp2's multiply-add."""
    if not FOLD:
        s = s * (scale * 1.4426950408889634)
    if BIAS != 0:
        inside = (i < rows) & (j < columns)
        b = tl.load(bias + i * bias_i + j * bias_j, mask=inside, other=0)
        if BIAS == 1:
            s += b.to(tl.float32) * 1.4426950408889634
        else:
            s = tl.where(b != 0, s, float("-inf"))
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
def weights_of(s, total, scale, FOLD: tl.constexpr):
    """exp2 of scores less `total`; FOLD as in `scores`."""
    if FOLD:
        s = s * (scale * 1.4426950408889634)
    return tl.exp2(s - total)
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
    y, m, l, q, k, v, i, of_i, lo, hi, k_t, v_t, k_docs, k_docs_t, left, right, bias, bias_i, bias_j, rng, stream, head,
    rows, columns, scale, keep, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    K_STEP: tl.constexpr, V_STEP: tl.constexpr, BLOCK_N: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr,
    RIGHT: tl.constexpr, DOCS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr,
    CHECK: tl.constexpr,
):
    """Positions lo … hi of k and v added to the result, to the largest score and to the sum of weights."""
    # loops of smaller blocks have too few stages, and those with masks too few registers
    masked: tl.constexpr = q.shape[1] == 128 and (LEFT or RIGHT or DOCS or CHECK)
    early: tl.constexpr = AHEAD and q.shape[0] >= 128 and not masked
    following = 0.0
    if early and q.shape[1] > 128:  # of no block, if there is none: rows beyond the last one are not read
        keys = rows_of(k, lo + tl.arange(0, BLOCK_N), k_t, columns, D, BLOCK_D, K_STEP, True)
        following = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    elif early:
        following = tl.zeros([q.shape[0], BLOCK_N], tl.float32)
        if lo < hi:  # in a block of its own, whose shared memory is free again in the loop
            keys = rows_of(k, lo + tl.arange(0, BLOCK_N), k_t, columns, D, BLOCK_D, K_STEP, True)
            following = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
    for start in tl.range(lo, hi, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        if early:
            s = following
            at = tl.where(start + BLOCK_N < hi, start + BLOCK_N, start) + tl.arange(0, BLOCK_N)
            keys = rows_of(k, at, k_t, columns, D, BLOCK_D, K_STEP, CHECK)
            following = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
        else:
            keys = rows_of(k, j, k_t, columns, D, BLOCK_D, K_STEP, CHECK)
            s = tl.dot(q, tl.trans(keys), input_precision=PRECISION)
        of_j = 0
        if DOCS:
            of_j = documents_of(k_docs, j, k_docs_t, columns)[None, :]
        s = scores(
            s, i[:, None], j[None, :], of_i, of_j, left, right, bias, bias_i, bias_j, rows, columns, scale, FOLD, LEFT,
            RIGHT, DOCS, BIAS, CHECK,
        )
        highest = tl.max(s, 1)
        if FOLD:
            highest = highest * (scale * 1.4426950408889634)
        largest = tl.maximum(m, highest)
        known = tl.where(largest == float("-inf"), 0.0, largest)
        p = weights_of(s, known[:, None], scale, FOLD)
        shrink = tl.exp2(m - known)
        l = l * shrink + tl.sum(p, 1)
        m = largest
        if DROPOUT:
            p = tl.where(kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE), p, 0.0)
        values = rows_of(v, j, v_t, columns, DV, BLOCK_DV, V_STEP, CHECK)
        y = tl.dot(p.to(values.dtype), values, y * shrink[:, None], input_precision=PRECISION)
    return y, m, l


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
    queries = rows_of(q, i, q_s, rows, D, BLOCK_D, Q_STEP, EDGE_M)
    y = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
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
        y, m, l = attend(
            y, m, l, queries, k, v, i, of_i, lo, first, k_t, v_t, k_docs, k_docs_t, left, right, bias, bias_i, bias_j,
            rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, K_STEP, V_STEP, BLOCK_N, FOLD,
            LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_N,
        )
    y, m, l = attend(
        y, m, l, queries, k, v, i, of_i, first, last, k_t, v_t, k_docs, k_docs_t, left, right, bias, bias_i, bias_j,
        rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, K_STEP, V_STEP, BLOCK_N, FOLD, False,
        False, False, BIAS, DROPOUT, WHOLE, False,
    )
    if LEFT or RIGHT or DOCS or EDGE_N:
        y, m, l = attend(
            y, m, l, queries, k, v, i, of_i, last, hi, k_t, v_t, k_docs, k_docs_t, left, right, bias, bias_i, bias_j,
            rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, K_STEP, V_STEP, BLOCK_N, FOLD,
            LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_N,
        )
    y = y / tl.where(l == 0.0, 1.0, l * keep)[:, None]
    total = tl.where(l == 0.0, 0.0, m * 0.6931471805599453 + tl.log(l))
    sums += head.to(tl.int64) * rows
    tl.store(sums + i, total, mask=i < rows)
    out += (batch * rows * heads + h) * DV
    put_rows(out, i, heads * DV, rows, y, DV, BLOCK_DV, EDGE_M)
'''

#: dq, and for the other kernels delta = sum(dy * y) of each row
QUERY_GRAD = """

@triton.jit
def add_queries(
    result, queries, grads, total, own, k, v, i, of_i, lo, hi, k_t, v_t, k_docs, k_docs_t, left, right, bias, bias_i,
    bias_j, rng, stream, head, rows, columns, scale, keep, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, K_STEP: tl.constexpr, V_STEP: tl.constexpr, BLOCK_N: tl.constexpr, FOLD: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCS: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    WHOLE: tl.constexpr, CHECK: tl.constexpr,
):
    '''What positions lo … hi of k and v add to dq.'''
    for start in tl.range(lo, hi, BLOCK_N):
        j = start + tl.arange(0, BLOCK_N)
        keys = rows_of(k, j, k_t, columns, D, BLOCK_D, K_STEP, CHECK)
        values = rows_of(v, j, v_t, columns, DV, BLOCK_DV, V_STEP, CHECK)
        s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
        of_j = 0
        if DOCS:
            of_j = documents_of(k_docs, j, k_docs_t, columns)[None, :]
        s = scores(
            s, i[:, None], j[None, :], of_i, of_j, left, right, bias, bias_i, bias_j, rows, columns, scale, FOLD, LEFT,
            RIGHT, DOCS, BIAS, CHECK,
        )
        p = weights_of(s, total[:, None], scale, FOLD)
        dp = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
        if DROPOUT:
            dp = tl.where(kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE), dp / keep, 0.0)
        ds = p * (dp - own[:, None])
        result = tl.dot(ds.to(keys.dtype), keys, result, input_precision=PRECISION)
    return result


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
    grads = rows_of(dy, i, dy_s, rows, DV, BLOCK_DV, DY_STEP, EDGE_M)
    made = rows_of(y, i, y_s, rows, DV, BLOCK_DV, Y_STEP, EDGE_M)
    own = tl.sum(grads.to(tl.float32) * made.to(tl.float32), 1)
    delta += head.to(tl.int64) * rows
    tl.store(delta + i, own, mask=i < rows)
    sums += head.to(tl.int64) * rows
    total = tl.load(sums + i, mask=i < rows, other=float("inf")) * 1.4426950408889634
    queries = rows_of(q, i, q_s, rows, D, BLOCK_D, Q_STEP, EDGE_M)
    result = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
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
        result = add_queries(
            result, queries, grads, total, own, k, v, i, of_i, lo, first, k_t, v_t, k_docs, k_docs_t, left, right,
            bias, bias_i, bias_j, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, K_STEP,
            V_STEP, BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_N,
        )
    result = add_queries(
        result, queries, grads, total, own, k, v, i, of_i, first, last, k_t, v_t, k_docs, k_docs_t, left, right, bias,
        bias_i, bias_j, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, K_STEP, V_STEP,
        BLOCK_N, FOLD, False, False, False, BIAS, DROPOUT, WHOLE, False,
    )
    if LEFT or RIGHT or DOCS or EDGE_N:
        result = add_queries(
            result, queries, grads, total, own, k, v, i, of_i, last, hi, k_t, v_t, k_docs, k_docs_t, left, right, bias,
            bias_i, bias_j, rng, stream, head, rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, K_STEP, V_STEP,
            BLOCK_N, FOLD, LEFT, RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_N,
        )
    dq += batch * dq_b + h * dq_h
    put_rows(dq, i, dq_s, rows, result * scale, D, BLOCK_D, EDGE_M)
"""

KEY_GRAD = """

@triton.jit
def add_keys(
    dk_sum, dv_sum, keys, values, q, dy, j, of_j, start, lo, hi, q_s, dy_s, sums, delta, q_docs, q_docs_s, left, right,
    bias, bias_i, bias_j, rng, stream, head, rows, columns, scale, keep, D: tl.constexpr, DV: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr, Q_STEP: tl.constexpr, DY_STEP: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, FOLD: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr, DOCS: tl.constexpr,
    BIAS: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, CHECK: tl.constexpr,
):
    '''What positions lo … hi of q add to dk (with KEYS) and dv (with VALUES).'''
    for top in tl.range(lo, hi, BLOCK_M):
        i = top + tl.arange(0, BLOCK_M)
        queries = rows_of(q, i, q_s, rows, D, BLOCK_D, Q_STEP, CHECK)
        grads = rows_of(dy, i, dy_s, rows, DV, BLOCK_DV, DY_STEP, CHECK)
        if CHECK:
            total = tl.load(sums + i, mask=i < rows, other=float("inf"))
        else:
            total = tl.load(sums + i)
        if KEYS:
            own = tl.load(delta + i, mask=i < rows, other=0.0) if CHECK else tl.load(delta + i)
        s = tl.dot(keys, tl.trans(queries), input_precision=PRECISION)
        of_i = 0
        if DOCS:
            of_i = documents_of(q_docs, i, q_docs_s, rows)[None, :]
        s = scores(
            s, i[None, :], j[:, None], of_i, of_j, left, right, bias, bias_i, bias_j, rows, columns, scale, FOLD, LEFT,
            RIGHT, DOCS, BIAS, False,
        )
        p = weights_of(s, total[None, :] * 1.4426950408889634, scale, FOLD)
        if KEYS:
            dp = tl.dot(values, tl.trans(grads), input_precision=PRECISION)
        weights = p
        if DROPOUT:
            keeps = tl.trans(kept(rng, stream, head, i, start, rows, columns, keep, BLOCK_N, WHOLE))
            weights = tl.where(keeps, p / keep, 0.0)
            if KEYS:
                dp = tl.where(keeps, dp / keep, 0.0)
        if VALUES:
            dv_sum = tl.dot(weights.to(grads.dtype), grads, dv_sum, input_precision=PRECISION)
        if KEYS:
            ds = p * (dp - own[None, :])
            dk_sum = tl.dot(ds.to(queries.dtype), queries, dk_sum, input_precision=PRECISION)
    return dk_sum, dv_sum


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
    keys = rows_of(k, j, k_t, columns, D, BLOCK_D, K_STEP, EDGE_N)
    values = 0.0
    dk_sum = 0.0
    dv_sum = 0.0
    if KEYS:
        v += batch * v_b + of_group * v_h
        values = rows_of(v, j, v_t, columns, DV, BLOCK_DV, V_STEP, EDGE_N)
        dk_sum = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    if VALUES:
        dv_sum = tl.zeros([BLOCK_N, BLOCK_DV], tl.float32)
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
            dk_sum, dv_sum = add_keys(
                dk_sum, dv_sum, keys, values, q_head, dy_head, j, of_j, start, lo, first, q_s, dy_s, sums + head *
                rows, delta_head, q_docs, q_docs_s, left, right, bias_head, bias_i, bias_j, rng, stream, head,
                rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, Q_STEP, DY_STEP, BLOCK_M, BLOCK_N, FOLD, LEFT,
                RIGHT, DOCS, BIAS, DROPOUT, WHOLE, EDGE_M,
            )
        if SPLIT or not (LEFT or RIGHT or DOCS):
            dk_sum, dv_sum = add_keys(
                dk_sum, dv_sum, keys, values, q_head, dy_head, j, of_j, start, first, last, q_s, dy_s, sums + head *
                rows, delta_head, q_docs, q_docs_s, left, right, bias_head, bias_i, bias_j, rng, stream, head,
                rows, columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, Q_STEP, DY_STEP, BLOCK_M, BLOCK_N, FOLD, False,
                False, False, BIAS, DROPOUT, WHOLE, EDGE_M,
            )
        if SPLIT and (LEFT or DOCS):
            dk_sum, dv_sum = add_keys(
                dk_sum, dv_sum, keys, values, q_head, dy_head, j, of_j, start, last, hi, q_s, dy_s, sums + head * rows,
                delta_head, q_docs, q_docs_s, left, right, bias_head, bias_i, bias_j, rng, stream, head, rows,
                columns, scale, keep, D, DV, BLOCK_D, BLOCK_DV, Q_STEP, DY_STEP, BLOCK_M, BLOCK_N, FOLD, LEFT, RIGHT,
                DOCS, BIAS, DROPOUT, WHOLE, EDGE_M,
            )
    if KEYS:
        dk += batch * dk_b + of_group * dk_h
        put_rows(dk, j, dk_s, columns, dk_sum * scale, D, BLOCK_D, EDGE_N)
    if VALUES:
        dv += batch * dv_b + of_group * dv_h
        put_rows(dv, j, dv_s, columns, dv_sum, DV, BLOCK_DV, EDGE_N)
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
            queries = rows_of(q_head, i, q_s, rows, D, BLOCK_D, Q_STEP, True)
            grads = rows_of(dy_head, i, dy_s, rows, DV, BLOCK_DV, DY_STEP, True)
            total = tl.load(sums + head * rows + i, mask=i < rows, other=float("inf")) * 1.4426950408889634
            own = tl.load(delta + head * rows + i, mask=i < rows, other=0.0)
            of_i = 0
            if DOCS:
                of_i = documents_of(q_docs + batch * q_docs_b, i, q_docs_s, rows)[:, None]
            for start in range(column, columns if SUM_J else column + 1, BLOCK_N):
                j = start + tl.arange(0, BLOCK_N)
                keys = rows_of(k_head, j, k_t, columns, D, BLOCK_D, K_STEP, True)
                values = rows_of(v_head, j, v_t, columns, DV, BLOCK_DV, V_STEP, True)
                s = tl.dot(queries, tl.trans(keys), input_precision=PRECISION)
                of_j = 0
                if DOCS:
                    of_j = documents_of(k_docs + batch * k_docs_b, j, k_docs_t, columns)[None, :]
                s = scores(
                    s, i[:, None], j[None, :], of_i, of_j, left, right, bias_head, bias_i, bias_j, rows, columns, scale,
                    False, LEFT, RIGHT, DOCS, 1, True,
                )
                p = tl.exp2(s - total[:, None])
                dp = tl.dot(grads, tl.trans(values), input_precision=PRECISION)
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
