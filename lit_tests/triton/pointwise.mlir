// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// A bias over the last dimension: tiles of rows and columns, no masks, since blocks divide the sizes.

// CHECK:      # @f for cuda:90: 1 steps, 1 kernels, arena 0 bytes
// CHECK:      [[NAME:pointwise_add_tanh_[0-9a-f]+]][{{.*}}, config 0](n1=64, n0=1024, in0=arg0, s0_0=64, in1=arg1, out0=result0)
// CHECK:      import triton
// CHECK:      # [[NAME]](n1: i32, n0: i32, in0: *fp32, s0_0: i32, in1: *fp32, out0: *fp32)
// CHECK-NEXT: #   grid: cdiv(n1, COLS) * cdiv(n0, ROWS)
// CHECK-NEXT: #   multiples of 16: n1, in0, s0_0, in1, out0
// CHECK:      # {{.*}}"gflow.fused"
// CHECK:      @triton.jit
// CHECK-NEXT: def [[NAME]](
// CHECK:        at0 = i0 * s0_0 + i1
// CHECK-NEXT:   load_0 = tl.load(in0 + at0)
// CHECK-NEXT:   load_1 = tl.load(in1 + i1)
// CHECK-NEXT:   add_2 = load_0 + load_1
// CHECK-NEXT:   tanh_3 = libdevice.tanh(add_2)
// CHECK-NEXT:   tl.store(out0 + at0, tanh_3)

func.func @f(%x: tensor<1024x64xf32>, %b: tensor<64xf32>) -> tensor<1024x64xf32> {
  %0 = "gflow.broadcast"(%b) {shape = array<i64: 1024, 64>, dims = array<i64: 1>} : (tensor<64xf32>) -> tensor<1024x64xf32>
  %1 = "gflow.add"(%x, %0) : (tensor<1024x64xf32>, tensor<1024x64xf32>) -> tensor<1024x64xf32>
  %2 = "gflow.tanh"(%1) : (tensor<1024x64xf32>) -> tensor<1024x64xf32>
  return %2 : tensor<1024x64xf32>
}
