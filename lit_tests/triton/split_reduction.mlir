// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Few columns, many rows: programs share the rows, and leave partial sums in the arena; a second launch combines them.

// CHECK: # @f for cuda:90: 2 steps, 2 kernels, arena 131,072 bytes
// CHECK: reduce_sum_{{.*}}[2×512×1, config 0](n1=64, n0=65536, chunk=128, in0=arg0, s0_0=64, out0=arena, width=64)
// CHECK: reduce_mul_sum_{{.*}}[2×1×1, config 0](n1=64, n0=512, in0=arena, s0_0=64, const0=1.52587890625e-05, out0=result0)
// CHECK: #   grid: cdiv(n1, COLS), cdiv(n0, chunk)
// CHECK: acc_1 = tl.full([ROWS, COLS], 0.0, tl.float32)
// CHECK: low = tl.program_id(1) * chunk
// CHECK: high = tl.minimum(low + chunk, n0)
// CHECK: for rows_start in tl.range(low, high, ROWS, num_stages=3):
// CHECK: acc_1 = acc_1 + load_0
// CHECK: sum_1 = tl.sum(acc_1, 0, keep_dims=True)
// CHECK: tl.store(out0 + i1 + tl.program_id(1) * width, sum_1)
// CHECK: def reduce_mul_sum_
// CHECK: mul_3 = sum_1 * const0
// CHECK: tl.store(out0 + i1, mul_3)

func.func @f(%x: tensor<65536x64xf32>) -> tensor<64xf32> {
  %0 = "gflow.reduce"(%x) {dims = array<i64: 0>, kind = "sum"} : (tensor<65536x64xf32>) -> tensor<64xf32>
  %1 = "gflow.constant"() {value = dense<1.52587890625e-05> : tensor<64xf32>} : () -> tensor<64xf32>
  %2 = "gflow.mul"(%0, %1) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  return %2 : tensor<64xf32>
}
