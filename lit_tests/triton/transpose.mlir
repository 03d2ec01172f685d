// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Read along one dimension, written along another: tiles of both, so that each access is contiguous in one of them.

// CHECK: pointwise_add_{{.*}}(n2=512, n1=512, n0=4, in0=arg0, s0_0=262144, s0_2=512, in1=arg1, s1_0=262144, s1_1=512, out0=result0)
// CHECK: #   grid: cdiv(n2, COLS) * cdiv(n1, ROWS) * n0
// CHECK: #   config 0: ROWS = 32, COLS = 32, 4 warps
// CHECK: i1 = rows_start + tl.arange(0, ROWS)[:, None]
// CHECK: i2 = cols_start + tl.arange(0, COLS)[None, :]
// CHECK: at0 = i0 * s0_0 + i1 + i2 * s0_2
// CHECK: load_0 = tl.load(in0 + at0)
// CHECK: at1 = i0 * s1_0 + i1 * s1_1 + i2
// CHECK: load_1 = tl.load(in1 + at1)
// CHECK: add_2 = load_0 + load_1
// CHECK: tl.store(out0 + at1, add_2)

func.func @f(%x: tensor<4x512x512xf32>, %y: tensor<4x512x512xf32>) -> tensor<4x512x512xf32> {
  %0 = "gflow.transpose"(%x) {permutation = array<i64: 0, 2, 1>} : (tensor<4x512x512xf32>) -> tensor<4x512x512xf32>
  %1 = "gflow.add"(%0, %y) : (tensor<4x512x512xf32>, tensor<4x512x512xf32>) -> tensor<4x512x512xf32>
  return %1 : tensor<4x512x512xf32>
}
