// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// A linear layer: the bias and the activation are computed on the tile of the product, the weight is read as it lies.

// CHECK:     @linear for cuda:90: 1 steps, 1 kernels
// CHECK:     matmul_add_maximum_{{.*}}(a=arg0, b=arg1, M=512, N=256, K=128,
// CHECK:     "gflow.matmul"
// CHECK:     def matmul_add_maximum_
// CHECK:     a_desc = tl.make_tensor_descriptor(a, [M, K], [a_m, 1], [BLOCK_M, BLOCK_K])
// CHECK:     tl.assume(tl.cdiv(K, BLOCK_K) > 0)
// CHECK:     if PERSISTENT:
// CHECK-NEXT:  last = tiles_m * tiles_n
// CHECK-NEXT:  stride = tl.num_programs(0)
// CHECK:     for program in tl.range(tl.program_id(0), last, stride, flatten=PERSISTENT > 0):
// CHECK:       band = program // (GROUP_M * tiles_n) * GROUP_M
// CHECK:       a_at = a + (a_rows * a_m)[:, None] + offs_k[None, :]
// CHECK:       b_at = b + offs_k[:, None] + (b_cols * b_n)[None, :]
// CHECK:       for step in range(0, tl.cdiv(K, BLOCK_K)):
// CHECK:         y = tl.trans(b_desc.load([tile_n * (BLOCK_N + REST), k]))
// CHECK:         elif K_MULTIPLE % BLOCK_K == 0:
// CHECK-NEXT:      x = tl.load(a_at + k)
// CHECK-NEXT:      y = tl.load(b_at + k)
// CHECK:         if REST:
// CHECK-NEXT:      y_rest = tl.trans(rest_desc.load([tile_n * (BLOCK_N + REST) + BLOCK_N, k]))
// CHECK:         acc = tl.dot(x, y, acc)
// CHECK-NEXT:    if REST:
// CHECK-NEXT:      acc_rest = tl.dot(x, y_rest, acc_rest)
// CHECK:       for part in tl.static_range(PARTS):
// CHECK-NEXT:    cols = tile_n * (BLOCK_N + REST) + part * ((BLOCK_N + REST) // PARTS) + tl.arange(0, (BLOCK_N + REST) // PARTS)
// CHECK-NEXT:    if part * ((BLOCK_N + REST) // PARTS) < BLOCK_N:
// CHECK-NEXT:      piece = gf_columns(acc, part, BLOCK_N // ((BLOCK_N + REST) // PARTS))
// CHECK:         tl.load(x{{[0-9]}} + cols[None, :], mask=(cols < N)[None, :]).to(tl.float32)
// CHECK:         tl.store(out0 + (rows * out0_s0)[:, None] + cols[None, :], {{.*}}.to(tl.bfloat16), mask=(rows < M)[:, None] & (cols < N)[None, :])
func.func @linear(%x: tensor<512x128xbf16>, %w: tensor<256x128xbf16>, %bias: tensor<256xbf16>) -> tensor<512x256xbf16> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 1, 0>} : (tensor<256x128xbf16>) -> tensor<128x256xbf16>
  %p = "gflow.matmul"(%x, %t) : (tensor<512x128xbf16>, tensor<128x256xbf16>) -> tensor<512x256xbf16>
  %b = "gflow.broadcast"(%bias) {dims = array<i64: 1>, shape = array<i64: 512, 256>} : (tensor<256xbf16>) -> tensor<512x256xbf16>
  %s = "gflow.add"(%p, %b) : (tensor<512x256xbf16>, tensor<512x256xbf16>) -> tensor<512x256xbf16>
  %z = "gflow.constant"() {value = dense<0.0> : tensor<512x256xbf16>} : () -> tensor<512x256xbf16>
  %r = "gflow.maximum"(%s, %z) : (tensor<512x256xbf16>, tensor<512x256xbf16>) -> tensor<512x256xbf16>
  return %r : tensor<512x256xbf16>
}
