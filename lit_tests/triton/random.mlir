// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Four neighbours are one block of Philox, whose words are computed once.

// CHECK: (n0=1048576, in0=arg0, stream_3=3, in1=arg1, out0=result0)
// CHECK: def gf_philox(block, stream, seed, offset):
// CHECK: def pointwise_random_mul_
// CHECK: load_1 = tl.load(in0)
// CHECK: load_2 = tl.load(in0 + 1)
// CHECK: gf_philox(cols_start // 4 + tl.arange(0, COLS // 4), stream_3, load_1, load_2)
// CHECK: random_3 = tl.reshape(tl.join(

func.func @f(%state: tensor<2xi64> {gflow.role = "rng"}, %x: tensor<1048576xf32>) -> tensor<1048576xf32> {
  %0 = "gflow.random"(%state) {kind = "uniform", stream = 3 : i64, shape = array<i64: 1048576>, dtype = "f32"} : (tensor<2xi64>) -> tensor<1048576xf32>
  %1 = "gflow.mul"(%0, %x) : (tensor<1048576xf32>, tensor<1048576xf32>) -> tensor<1048576xf32>
  return %1 : tensor<1048576xf32>
}
