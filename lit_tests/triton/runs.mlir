// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// The backward of a norm: each program takes a run of rows, and leaves the sums of its columns; the second launch
// sums those, and updates both parameters.

// CHECK: # @f for cuda:90: 2 steps, 2 kernels, arena 1,048,576 bytes
// CHECK: reduce_sub_partial_sums_sum_{{.*}}[1×512×1, config 0](n0=4096, chunk=8, in0=arg1, s0_0=256, in1=arg0, out0=result0, out1=arena, width=256, out2=arena+524288)
// CHECK: reduce_add_sum_{{.*}}[8×1×1, config 0](n1=256, n0=512, in0=arena, s0_0=256, in1=arena+524288, in2=arg2, in3=arg3, out0=arg2, out1=arg3)
// CHECK: def reduce_sub_partial_sums_sum_
// CHECK: acc_6 = tl.full([ROWS, COLS], 0.0, tl.float32)
// CHECK: low = tl.program_id(1) * chunk
// CHECK: for rows_start in range(low, high, ROWS):
// CHECK:   sum_3 = tl.sum(mul_2, 1, keep_dims=True)
// CHECK:   acc_6 += load_0
// CHECK:   acc_7 += mul_2
// CHECK:   tl.store(out0 + at0, sub_5)
// CHECK: sum_6 = tl.sum(acc_6, 0, keep_dims=True)
// CHECK: tl.store(out1 + i1 + tl.program_id(1) * width, sum_6)
// CHECK: def reduce_add_sum_
// CHECK: for rows_start in tl.range(0, n0, ROWS, num_stages=2):
// CHECK: tl.store(out1 + i1, add_7)

func.func @f(%x: tensor<4096x256xf32>, %g: tensor<4096x256xf32>, %v: tensor<256xf32>, %w: tensor<256xf32>)
    -> (tensor<4096x256xf32>, tensor<256xf32> {gflow.alias = 2 : i64}, tensor<256xf32> {gflow.alias = 3 : i64}) {
  %m = "gflow.mul"(%g, %x) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %s = "gflow.reduce"(%m) {dims = array<i64: 1>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<4096xf32>
  %b = "gflow.broadcast"(%s) {dims = array<i64: 0>, shape = array<i64: 4096, 256>} : (tensor<4096xf32>) -> tensor<4096x256xf32>
  %h = "gflow.mul"(%x, %b) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %d = "gflow.sub"(%g, %h) : (tensor<4096x256xf32>, tensor<4096x256xf32>) -> tensor<4096x256xf32>
  %t = "gflow.reduce"(%g) {dims = array<i64: 0>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<256xf32>
  %u = "gflow.add"(%v, %t) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  %r = "gflow.reduce"(%m) {dims = array<i64: 0>, kind = "sum"} : (tensor<4096x256xf32>) -> tensor<256xf32>
  %q = "gflow.add"(%w, %r) : (tensor<256xf32>, tensor<256xf32>) -> tensor<256xf32>
  return %d, %u, %q : tensor<4096x256xf32>, tensor<256xf32>, tensor<256xf32>
}
