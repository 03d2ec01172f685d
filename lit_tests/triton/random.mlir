// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// Four neighbours are one block of Philox, whose words are computed once.

// CHECK: (n0=1048576, in0=arg0, stream0=3, in1=arg1, out0=result0)
// CHECK: def gf_philox(block, stream, seed, offset):
// CHECK: def pointwise_random_mul_
// CHECK: load_1 = tl.load(in0)
// CHECK: load_2 = tl.load(in0 + 1)
// CHECK: gf_philox(cols_start // 4 + tl.arange(0, COLS // 4), stream0, load_1, load_2)
// CHECK: random_3 = tl.reshape(tl.join(

func.func @f(%state: tensor<2xi64> {gflow.role = "rng"}, %x: tensor<1048576xf32>) -> tensor<1048576xf32> {
  %0 = "gflow.random"(%state) {kind = "uniform", stream = 3 : i64, shape = array<i64: 1048576>, dtype = "f32"} : (tensor<2xi64>) -> tensor<1048576xf32>
  %1 = "gflow.mul"(%0, %x) : (tensor<1048576xf32>, tensor<1048576xf32>) -> tensor<1048576xf32>
  return %1 : tensor<1048576xf32>
}

// The same behind a product, on the columns of its tile.

// CHECK-LABEL: # @product
// CHECK: def matmul_random_mul_
// CHECK: gf_philox(({{.*}}[:, None]) // 4 + (tile_n * BLOCK_N // 4 + part * {{.*}})[None, :], stream0,

func.func @product(%x: tensor<512x64xf32>, %y: tensor<64x256xf32>, %state: tensor<2xi64> {gflow.role = "rng"}) -> tensor<512x256xf32> {
  %0 = "gflow.matmul"(%x, %y) : (tensor<512x64xf32>, tensor<64x256xf32>) -> tensor<512x256xf32>
  %1 = "gflow.random"(%state) {kind = "uniform", stream = 3 : i64, shape = array<i64: 512, 256>, dtype = "f32"} : (tensor<2xi64>) -> tensor<512x256xf32>
  %2 = "gflow.mul"(%0, %1) : (tensor<512x256xf32>, tensor<512x256xf32>) -> tensor<512x256xf32>
  return %2 : tensor<512x256xf32>
}
