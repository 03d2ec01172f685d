// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// A whole row is a tile: it is read once. Halves are computed in float32; columns beyond the row count for nothing.

// CHECK: reduce_div_sum_max_{{.*}}[4096×1×1, config 0](n0=4096, n1_8=125, in0=arg0, s0_0_8=125, out0=result0)
// CHECK: #   grid: cdiv(n0, ROWS)
// CHECK: #   config 0: ROWS = 1, COLS = 1024, 4 warps
// CHECK: cols_in = i1 < n1_8 * 8
// CHECK: load_0 = tl.load(in0 + at0, mask=cols_in).to(tl.float32)
// CHECK: tl.reduce(tl.where(cols_in, {{.*}}, float("-inf")), 1, gf_combine_max, keep_dims=True)
// CHECK: exp_4 = libdevice.fast_expf(sub_3)
// CHECK: sum_5 = tl.sum(tl.where(cols_in, exp_4, 0.0), 1, keep_dims=True)
// CHECK: div_6 = exp_4 / sum_5
// CHECK: tl.store(out0 + at0, {{.*}}, mask=cols_in)

func.func @f(%x: tensor<4096x1000xbf16>) -> tensor<4096x1000xbf16> {
  %0 = "gflow.convert"(%x) {dtype = "f32"} : (tensor<4096x1000xbf16>) -> tensor<4096x1000xf32>
  %1 = "gflow.reduce"(%0) {dims = array<i64: 1>, kind = "max"} : (tensor<4096x1000xf32>) -> tensor<4096xf32>
  %2 = "gflow.broadcast"(%1) {shape = array<i64: 4096, 1000>, dims = array<i64: 0>} : (tensor<4096xf32>) -> tensor<4096x1000xf32>
  %3 = "gflow.sub"(%0, %2) : (tensor<4096x1000xf32>, tensor<4096x1000xf32>) -> tensor<4096x1000xf32>
  %4 = "gflow.exp"(%3) : (tensor<4096x1000xf32>) -> tensor<4096x1000xf32>
  %5 = "gflow.reduce"(%4) {dims = array<i64: 1>, kind = "sum"} : (tensor<4096x1000xf32>) -> tensor<4096xf32>
  %6 = "gflow.broadcast"(%5) {shape = array<i64: 4096, 1000>, dims = array<i64: 0>} : (tensor<4096xf32>) -> tensor<4096x1000xf32>
  %7 = "gflow.div"(%4, %6) : (tensor<4096x1000xf32>, tensor<4096x1000xf32>) -> tensor<4096x1000xf32>
  %8 = "gflow.convert"(%7) {dtype = "bf16"} : (tensor<4096x1000xf32>) -> tensor<4096x1000xbf16>
  return %8 : tensor<4096x1000xbf16>
}
