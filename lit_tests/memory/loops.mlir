// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-select-kernels{threads=2 isa=x86-64-v3 direct=false}))' | FileCheck %s

// How regions run on a processor: vectors along rows of a sum of rows, and along columns, three side by side, of a sum of
// columns, whose rows threads share; work of some microseconds stays with one thread.

// CHECK-LABEL: func.func @rows(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>}
func.func @rows(%x: tensor<24x48xf32>) -> tensor<24xf32> {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 1>} : (tensor<24x48xf32>) -> tensor<24xf32>
  return %0 : tensor<24xf32>
}

// CHECK-LABEL: func.func @columns(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>, scratch = 768 : i64, share = "inner", threads = "all", unroll = 3 : i64}
func.func @columns(%x: tensor<4096x48xf32>) -> tensor<48xf32> {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 0>} : (tensor<4096x48xf32>) -> tensor<48xf32>
  return %0 : tensor<48xf32>
}

// Where threads share the rows, what follows the sums is not part of the unrolled code: four vectors side by side.
// CHECK-LABEL: func.func @norm(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 0, 1>, scratch = 1024 : i64, share = "inner", threads = "all", unroll = 4 : i64}
func.func @norm(%x: tensor<4096x64xf32>) -> tensor<64xf32> {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 0>} : (tensor<4096x64xf32>) -> tensor<64xf32>
  %1 = "gflow.exp"(%0) : (tensor<64xf32>) -> tensor<64xf32>
  %2 = "gflow.sin"(%1) : (tensor<64xf32>) -> tensor<64xf32>
  %3 = "gflow.exp"(%2) : (tensor<64xf32>) -> tensor<64xf32>
  %4 = "gflow.sin"(%3) : (tensor<64xf32>) -> tensor<64xf32>
  %5 = "gflow.exp"(%4) : (tensor<64xf32>) -> tensor<64xf32>
  %6 = "gflow.sin"(%5) : (tensor<64xf32>) -> tensor<64xf32>
  %7 = "gflow.exp"(%6) : (tensor<64xf32>) -> tensor<64xf32>
  %8 = "gflow.sin"(%7) : (tensor<64xf32>) -> tensor<64xf32>
  %9 = "gflow.exp"(%8) : (tensor<64xf32>) -> tensor<64xf32>
  %10 = "gflow.sin"(%9) : (tensor<64xf32>) -> tensor<64xf32>
  %11 = "gflow.exp"(%10) : (tensor<64xf32>) -> tensor<64xf32>
  %12 = "gflow.sin"(%11) : (tensor<64xf32>) -> tensor<64xf32>
  %13 = "gflow.exp"(%12) : (tensor<64xf32>) -> tensor<64xf32>
  %14 = "gflow.sin"(%13) : (tensor<64xf32>) -> tensor<64xf32>
  %15 = "gflow.exp"(%14) : (tensor<64xf32>) -> tensor<64xf32>
  %16 = "gflow.sin"(%15) : (tensor<64xf32>) -> tensor<64xf32>
  %17 = "gflow.exp"(%16) : (tensor<64xf32>) -> tensor<64xf32>
  %18 = "gflow.sin"(%17) : (tensor<64xf32>) -> tensor<64xf32>
  %19 = "gflow.exp"(%18) : (tensor<64xf32>) -> tensor<64xf32>
  %20 = "gflow.sin"(%19) : (tensor<64xf32>) -> tensor<64xf32>
  %21 = "gflow.exp"(%20) : (tensor<64xf32>) -> tensor<64xf32>
  %22 = "gflow.sin"(%21) : (tensor<64xf32>) -> tensor<64xf32>
  %23 = "gflow.exp"(%22) : (tensor<64xf32>) -> tensor<64xf32>
  %24 = "gflow.sin"(%23) : (tensor<64xf32>) -> tensor<64xf32>
  %25 = "gflow.exp"(%24) : (tensor<64xf32>) -> tensor<64xf32>
  %26 = "gflow.sin"(%25) : (tensor<64xf32>) -> tensor<64xf32>
  %27 = "gflow.exp"(%26) : (tensor<64xf32>) -> tensor<64xf32>
  %28 = "gflow.sin"(%27) : (tensor<64xf32>) -> tensor<64xf32>
  return %28 : tensor<64xf32>
}

// Of short rows, vectors run across rows.
// CHECK-LABEL: func.func @short_rows(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 16 : i64, order = array<i64: 1, 0>
func.func @short_rows(%x: tensor<128x4xf32>) -> tensor<128xf32> {
  %0 = "gflow.reduce"(%x) {kind = "sum", dims = array<i64: 1>} : (tensor<128x4xf32>) -> tensor<128xf32>
  return %0 : tensor<128xf32>
}

// CHECK-LABEL: func.func @doubles(
// CHECK:       gflow.kernel = {kind = "loops", lanes = 8 : i64, order = array<i64: 0>}
func.func @doubles(%x: tensor<24x48xf64>) -> tensor<24x48xf64> {
  %0 = "gflow.exp"(%x) : (tensor<24x48xf64>) -> tensor<24x48xf64>
  return %0 : tensor<24x48xf64>
}

// Each operand of a concatenation is a copy with loops of its own.
// CHECK-LABEL: func.func @copies(
// CHECK:       gflow.kernel = {kind = "kernel", then = [{lanes = 16 : i64, order = array<i64: 0>}, {lanes = 16 : i64, order = array<i64: 0>}]}
func.func @copies(%x: tensor<24x48xf32>, %y: tensor<8x48xf32>) -> tensor<32x48xf32> {
  %0 = "gflow.concatenate"(%x, %y) {dim = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<24x48xf32>, tensor<8x48xf32>) -> tensor<32x48xf32>
  return %0 : tensor<32x48xf32>
}

// A result that does not fit a cache is made some rows at a time, and what follows runs on these. The product is written to the
// sum's buffer first.
// CHECK-LABEL: func.func @pieces(
// CHECK:       gflow.kernel = {into = 0 : i64, kind = "blas", rows = 512 : i64, then = [{lanes = 8 : i64, order = array<i64: 0, 1>, threads = "all"}]}
func.func @pieces(%x: tensor<4096x64xf64>, %w: tensor<64x512xf64>, %b: tensor<512xf64>) -> tensor<4096x512xf64> {
  %0 = "gflow.matmul"(%x, %w) : (tensor<4096x64xf64>, tensor<64x512xf64>) -> tensor<4096x512xf64>
  %1 = "gflow.broadcast"(%b) {shape = array<i64: 4096, 512>, dims = array<i64: 1>} : (tensor<512xf64>) -> tensor<4096x512xf64>
  %2 = "gflow.add"(%0, %1) : (tensor<4096x512xf64>, tensor<4096x512xf64>) -> tensor<4096x512xf64>
  return %2 : tensor<4096x512xf64>
}

// An updated argument still holds an operand, so the product is written to scratch.
// CHECK-LABEL: func.func @updated(
// CHECK:       gflow.kernel = {kind = "blas", scratch = 512 : i64, then
func.func @updated(%x: tensor<8x4xf64>, %w: tensor<4x8xf64>, %p: tensor<8x8xf64>) -> (tensor<8x8xf64> {gflow.alias = 2 : i64}) {
  %0 = "gflow.matmul"(%x, %w) : (tensor<8x4xf64>, tensor<4x8xf64>) -> tensor<8x8xf64>
  %1 = "gflow.add"(%0, %p) : (tensor<8x8xf64>, tensor<8x8xf64>) -> tensor<8x8xf64>
  return %1 : tensor<8x8xf64>
}

// PyTorch's order of a weight is not the one of patches: it is copied, in loops of its own, and patches of some positions
// are made at a time.
// CHECK-LABEL: func.func @weight(
// CHECK:       gflow.kernel = {{.*}}copies = ["weight"]{{.*}}rows = {{[0-9]+}} : i64, {{.*}}then = [{lanes = 16 : i64, order = array<i64: {{[0-9, ]+}}>}, {{{.*}}}]
func.func @weight(%x: tensor<32x58x58x16xf32>, %w: tensor<32x16x3x3xf32>) -> tensor<32x56x56x32xf32> {
  %t = "gflow.transpose"(%w) {permutation = array<i64: 0, 2, 3, 1>} : (tensor<32x16x3x3xf32>) -> tensor<32x3x3x16xf32>
  %0 = "gflow.convolution"(%x, %t) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C"} : (tensor<32x58x58x16xf32>, tensor<32x3x3x16xf32>) -> tensor<32x56x56x32xf32>
  return %0 : tensor<32x56x56x32xf32>
}

// Maxima over windows, channels last, and their gradients are gflow's kernels. Those that it has no kernel for, and gradients at positions
// that come from elsewhere, are calls of PyTorch.
// CHECK-LABEL: func.func @maxima(
// CHECK:       "gflow.max_pool"(%arg0) {gflow.kernel = {kind = "kernel", threads = "all"}
// CHECK:       "gflow.max_pool_grad"(%arg1, %{{.+}}#1) {gflow.kernel = {kind = "kernel", threads = "all"}
// CHECK:       "gflow.max_pool_grad"(%arg1, %arg2) {gflow.kernel = {kind = "pytorch"}
// CHECK:       "gflow.max_pool"(%arg3) {gflow.kernel = {kind = "pytorch"}
func.func @maxima(%x: tensor<2x64x64x32xbf16>, %dy: tensor<2x32x32x32xbf16>, %at: tensor<2x32x32x32xi64>, %z: tensor<2x64x64x32xf64>) -> (tensor<2x32x32x32xbf16>, tensor<2x64x64x32xbf16>, tensor<2x64x64x32xbf16>, tensor<2x32x32x32xf64>) {
  %y:2 = "gflow.max_pool"(%x) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, layout = "N*C", positions = "plane", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>} : (tensor<2x64x64x32xbf16>) -> (tensor<2x32x32x32xbf16>, tensor<2x32x32x32xi64>)
  %dx = "gflow.max_pool_grad"(%dy, %y#1) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, layout = "N*C", shape = array<i64: 2, 64, 64, 32>} : (tensor<2x32x32x32xbf16>, tensor<2x32x32x32xi64>) -> tensor<2x64x64x32xbf16>
  %other = "gflow.max_pool_grad"(%dy, %at) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, layout = "N*C", shape = array<i64: 2, 64, 64, 32>} : (tensor<2x32x32x32xbf16>, tensor<2x32x32x32xi64>) -> tensor<2x64x64x32xbf16>
  %v = "gflow.max_pool"(%z) {kernel = array<i64: 2, 2>, stride = array<i64: 2, 2>, padding = array<i64: 0, 0>, layout = "N*C", positions = "none", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<2x64x64x32xf64>) -> tensor<2x32x32x32xf64>
  return %y#0, %dx, %other, %v : tensor<2x32x32x32xbf16>, tensor<2x64x64x32xbf16>, tensor<2x64x64x32xbf16>, tensor<2x32x32x32xf64>
}
