// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// The backward of a norm: each program takes a run of rows, and leaves the sums of its columns; the second launch
// sums those, and updates both parameters.

// CHECK: # @f for cuda:90: 2 steps, 2 kernels, arena 524,288 bytes
// CHECK: reduce_mul_sub_sum_{{.*}}[1×256×1, config 0](n0=4096, chunk=16, in0=arg1, s0_0=256, in1=arg0, out2=result0, out0=arena, width=256, out1=arena+262144)
// CHECK: reduce_add_sum_{{.*}}[8×1×1, config 0](n1=256, n0=256, in0=arena, s0_0=256, in1=arena+262144, in2=arg2, in3=arg3, out0=arg2, out1=arg3)
// CHECK: def reduce_mul_sub_sum_
// CHECK: acc_4 = tl.full([ROWS, COLS], 0.0, tl.float32)
// CHECK: low = tl.program_id(1) * chunk
// CHECK: for rows_start in tl.range(low, high, ROWS, num_stages=3):
// CHECK:   sum_5 = tl.sum(mul_3, 1, keep_dims=True)
// CHECK:   acc_1 += load_0
// CHECK:   acc_4 += mul_3
// CHECK:   tl.store(out2 + at0, sub_7)
// CHECK: sum_4 = tl.sum(acc_4, 0, keep_dims=True)
// CHECK: tl.store(out1 + i1 + tl.program_id(1) * width, sum_4)
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
