// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-split-softmax{least-columns=128 least-bytes=0}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-split-softmax))' | FileCheck %s --check-prefix=SMALL

// A cross-entropy with its gradient: the product stores exponentials, and products multiply them by a scale of each run.

// CHECK-LABEL: func.func @loss(
// CHECK: %[[p:.+]]:4 = "gflow.fused"(
// CHECK: "gflow.matmul"
// CHECK: "gflow.add"
// CHECK: "gflow.softmax_runs"({{.+}}) {run = 128 : i64} : (tensor<64x300xf32>, tensor<64xi64>) -> (tensor<64x300xf32>, tensor<3x64xf32>, tensor<3x64xf32>, tensor<64xf32>)
// CHECK: kind = "contraction"
// CHECK: "gflow.reduce"(%[[p]]#0) {dims = array<i64: 0>, kind = "max"} : (tensor<3x64xf32>) -> tensor<64xf32>
// CHECK: "gflow.reduce"({{.+}}) {dims = array<i64: 0>, kind = "sum"} : (tensor<3x64xf32>) -> tensor<64xf32>
// CHECK-NOT: tensor<64x300xf32>
// CHECK: %[[q:.+]] = "gflow.put"(%[[p]]#2, %arg3, {{.+}}) : (tensor<64x300xbf16>, tensor<64xi64>, tensor<64xbf16>) -> tensor<64x300xbf16>
// CHECK: "gflow.scaled_matmul"(%[[q]], %arg2, %[[c:.+]]) {along = "columns", run = 128 : i64} : (tensor<64x300xbf16>, tensor<300x32xbf16>, tensor<3x64xf32>) -> tensor<64x32xbf16>
// CHECK: %[[t:.+]] = "gflow.transpose"(%[[q]])
// CHECK: "gflow.scaled_matmul"(%[[t]], %arg0, %[[c]]) {along = "rows", run = 128 : i64} : (tensor<300x64xbf16>, tensor<64x32xbf16>, tensor<3x64xf32>) -> tensor<300x32xbf16>
// SMALL-NOT: softmax_runs
func.func @loss(%h: tensor<64x32xbf16>, %w: tensor<32x300xbf16>, %v: tensor<300x32xbf16>, %t: tensor<64xi64>, %b: tensor<300xbf16>)
    -> (tensor<64xf32>, tensor<64x32xbf16>, tensor<300x32xbf16>) {
  %product = "gflow.matmul"(%h, %w) : (tensor<64x32xbf16>, tensor<32x300xbf16>) -> tensor<64x300xbf16>
  %bias = "gflow.broadcast"(%b) {dims = array<i64: 1>, shape = array<i64: 64, 300>} : (tensor<300xbf16>) -> tensor<64x300xbf16>
  %0 = "gflow.convert"(%product) {dtype = "f32"} : (tensor<64x300xbf16>) -> tensor<64x300xf32>
  %1 = "gflow.convert"(%bias) {dtype = "f32"} : (tensor<64x300xbf16>) -> tensor<64x300xf32>
  %x = "gflow.add"(%0, %1) : (tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %most = "gflow.reduce"(%x) {dims = array<i64: 1>, kind = "max"} : (tensor<64x300xf32>) -> tensor<64xf32>
  %2 = "gflow.broadcast"(%most) {dims = array<i64: 0>, shape = array<i64: 64, 300>} : (tensor<64xf32>) -> tensor<64x300xf32>
  %3 = "gflow.sub"(%x, %2) : (tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %4 = "gflow.exp"(%3) : (tensor<64x300xf32>) -> tensor<64x300xf32>
  %sum = "gflow.reduce"(%4) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x300xf32>) -> tensor<64xf32>
  %5 = "gflow.log"(%sum) : (tensor<64xf32>) -> tensor<64xf32>
  %6 = "gflow.broadcast"(%5) {dims = array<i64: 0>, shape = array<i64: 64, 300>} : (tensor<64xf32>) -> tensor<64x300xf32>
  %7 = "gflow.sub"(%3, %6) : (tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %8 = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 64, 300>} : () -> tensor<64x300xi64>
  %9 = "gflow.broadcast"(%t) {dims = array<i64: 0>, shape = array<i64: 64, 300>} : (tensor<64xi64>) -> tensor<64x300xi64>
  %hot = "gflow.compare"(%8, %9) {predicate = "eq"} : (tensor<64x300xi64>, tensor<64x300xi64>) -> tensor<64x300xi1>
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<64x300xf32>} : () -> tensor<64x300xf32>
  %one = "gflow.constant"() {value = dense<1.0> : tensor<64x300xf32>} : () -> tensor<64x300xf32>
  %10 = "gflow.neg"(%7) : (tensor<64x300xf32>) -> tensor<64x300xf32>
  %11 = "gflow.select"(%hot, %10, %zero) : (tensor<64x300xi1>, tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %losses = "gflow.reduce"(%11) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x300xf32>) -> tensor<64xf32>
  %12 = "gflow.exp"(%7) : (tensor<64x300xf32>) -> tensor<64x300xf32>
  %13 = "gflow.select"(%hot, %one, %zero) : (tensor<64x300xi1>, tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %14 = "gflow.sub"(%12, %13) : (tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %g = "gflow.convert"(%14) {dtype = "bf16"} : (tensor<64x300xf32>) -> tensor<64x300xbf16>
  %d = "gflow.matmul"(%g, %v) : (tensor<64x300xbf16>, tensor<300x32xbf16>) -> tensor<64x32xbf16>
  %gt = "gflow.transpose"(%g) {permutation = array<i64: 1, 0>} : (tensor<64x300xbf16>) -> tensor<300x64xbf16>
  %dw = "gflow.matmul"(%gt, %h) : (tensor<300x64xbf16>, tensor<64x32xbf16>) -> tensor<300x32xbf16>
  return %losses, %d, %dw : tensor<64xf32>, tensor<64x32xbf16>, tensor<300x32xbf16>
}

// Scores that something else reads, too, are kept.

// CHECK-LABEL: func.func @kept(
// CHECK-NOT: softmax_runs
func.func @kept(%h: tensor<64x32xbf16>, %w: tensor<32x300xbf16>, %v: tensor<300x32xbf16>, %t: tensor<64xi64>) -> (tensor<64x32xbf16>, tensor<64x300xbf16>) {
  %product = "gflow.matmul"(%h, %w) : (tensor<64x32xbf16>, tensor<32x300xbf16>) -> tensor<64x300xbf16>
  %x = "gflow.convert"(%product) {dtype = "f32"} : (tensor<64x300xbf16>) -> tensor<64x300xf32>
  %most = "gflow.reduce"(%x) {dims = array<i64: 1>, kind = "max"} : (tensor<64x300xf32>) -> tensor<64xf32>
  %2 = "gflow.broadcast"(%most) {dims = array<i64: 0>, shape = array<i64: 64, 300>} : (tensor<64xf32>) -> tensor<64x300xf32>
  %3 = "gflow.sub"(%x, %2) : (tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %4 = "gflow.exp"(%3) : (tensor<64x300xf32>) -> tensor<64x300xf32>
  %8 = "gflow.iota"() {dim = 1 : i64, dtype = "i64", shape = array<i64: 64, 300>} : () -> tensor<64x300xi64>
  %9 = "gflow.broadcast"(%t) {dims = array<i64: 0>, shape = array<i64: 64, 300>} : (tensor<64xi64>) -> tensor<64x300xi64>
  %hot = "gflow.compare"(%8, %9) {predicate = "eq"} : (tensor<64x300xi64>, tensor<64x300xi64>) -> tensor<64x300xi1>
  %zero = "gflow.constant"() {value = dense<0.0> : tensor<64x300xf32>} : () -> tensor<64x300xf32>
  %13 = "gflow.select"(%hot, %zero, %4) : (tensor<64x300xi1>, tensor<64x300xf32>, tensor<64x300xf32>) -> tensor<64x300xf32>
  %g = "gflow.convert"(%13) {dtype = "bf16"} : (tensor<64x300xf32>) -> tensor<64x300xbf16>
  %d = "gflow.matmul"(%g, %v) : (tensor<64x300xbf16>, tensor<300x32xbf16>) -> tensor<64x32xbf16>
  return %d, %product : tensor<64x32xbf16>, tensor<64x300xbf16>
}
