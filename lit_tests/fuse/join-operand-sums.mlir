// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-join-operand-sums{target=cuda:90}))' | FileCheck %s
// RUN: not %gflow-opt %s --gflow-join-operand-sums 2>&1 | FileCheck %s --check-prefix=TARGET

// TARGET: products sum operands on GPUs: name one as target

// The gradients of a weight and of a bias: the product sums its first operand by rows.

// CHECK-LABEL: func.func @rows(
// CHECK-NEXT:   %[[t:.+]] = "gflow.transpose"(%arg0)
// CHECK-NEXT:   %[[r:.+]]:2 = "gflow.fused"(%arg1, %[[t]]) ({
// CHECK-NEXT:   ^bb0(%[[b:.+]]: tensor<512x32xbf16>, %[[a:.+]]: tensor<64x512xbf16>):
// CHECK-NEXT:     %[[p:.+]] = "gflow.matmul"(%[[a]], %[[b]])
// CHECK-NEXT:     %[[c:.+]] = "gflow.convert"(%[[a]]) {dtype = "f32"}
// CHECK-NEXT:     %[[s:.+]] = "gflow.reduce"(%[[c]]) {dims = array<i64: 1>, kind = "sum"} : (tensor<64x512xf32>) -> tensor<64xf32>
// CHECK-NEXT:     %[[h:.+]] = "gflow.convert"(%[[s]]) {dtype = "bf16"}
// CHECK-NEXT:     "gflow.yield"(%[[p]], %[[h]])
// CHECK-NEXT:   }) {kind = "contraction"
// CHECK-NEXT:   return %[[r]]#0, %[[r]]#1
func.func @rows(%g: tensor<512x64xbf16>, %x: tensor<512x32xbf16>) -> (tensor<64x32xbf16>, tensor<64xbf16>) {
  %t = "gflow.transpose"(%g) {permutation = array<i64: 1, 0>} : (tensor<512x64xbf16>) -> tensor<64x512xbf16>
  %w = "gflow.matmul"(%t, %x) : (tensor<64x512xbf16>, tensor<512x32xbf16>) -> tensor<64x32xbf16>
  %c = "gflow.convert"(%g) {dtype = "f32"} : (tensor<512x64xbf16>) -> tensor<512x64xf32>
  %s = "gflow.reduce"(%c) {dims = array<i64: 0>, kind = "sum"} : (tensor<512x64xf32>) -> tensor<64xf32>
  %h = "gflow.convert"(%s) {dtype = "bf16"} : (tensor<64xf32>) -> tensor<64xbf16>
  return %w, %h : tensor<64x32xbf16>, tensor<64xbf16>
}

// The second operand is summed by columns. It is a reshape of what the column kernel reads.

// CHECK-LABEL: func.func @columns(
// CHECK:        "gflow.fused"(%arg1, %{{.+}}) ({
// CHECK:          "gflow.matmul"
// CHECK:          "gflow.reduce"(%{{.+}}) {dims = array<i64: 0>, kind = "sum"} : (tensor<512x64xf32>) -> tensor<64xf32>
// CHECK:        }) {kind = "contraction"
func.func @columns(%g: tensor<8x64x64xf16>, %x: tensor<32x512xf16>) -> (tensor<32x64xf16>, tensor<64xf32>) {
  %r = "gflow.reshape"(%g) {shape = array<i64: 512, 64>} : (tensor<8x64x64xf16>) -> tensor<512x64xf16>
  %w = "gflow.matmul"(%x, %r) : (tensor<32x512xf16>, tensor<512x64xf16>) -> tensor<32x64xf16>
  %c = "gflow.convert"(%g) {dtype = "f32"} : (tensor<8x64x64xf16>) -> tensor<8x64x64xf32>
  %s = "gflow.reduce"(%c) {dims = array<i64: 0, 1>, kind = "sum"} : (tensor<8x64x64xf32>) -> tensor<64xf32>
  return %w, %s : tensor<32x64xf16>, tensor<64xf32>
}

// The product contracts the other dimension.

// CHECK-LABEL: func.func @other(
// CHECK:        kind = "column"
func.func @other(%g: tensor<64x64xbf16>, %x: tensor<64x32xbf16>) -> (tensor<64x32xbf16>, tensor<64xf32>) {
  %w = "gflow.matmul"(%g, %x) : (tensor<64x64xbf16>, tensor<64x32xbf16>) -> tensor<64x32xbf16>
  %c = "gflow.convert"(%g) {dtype = "f32"} : (tensor<64x64xbf16>) -> tensor<64x64xf32>
  %s = "gflow.reduce"(%c) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  return %w, %s : tensor<64x32xbf16>, tensor<64xf32>
}

// What is summed is no operand of the product.

// CHECK-LABEL: func.func @squares(
// CHECK:        kind = "column"
func.func @squares(%g: tensor<64x64xbf16>, %x: tensor<32x64xbf16>) -> (tensor<32x64xbf16>, tensor<64xf32>) {
  %w = "gflow.matmul"(%x, %g) : (tensor<32x64xbf16>, tensor<64x64xbf16>) -> tensor<32x64xbf16>
  %c = "gflow.convert"(%g) {dtype = "f32"} : (tensor<64x64xbf16>) -> tensor<64x64xf32>
  %q = "gflow.mul"(%c, %c) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %s = "gflow.reduce"(%q) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  return %w, %s : tensor<32x64xbf16>, tensor<64xf32>
}

// The product's other operand depends on the sums.

// CHECK-LABEL: func.func @before(
// CHECK:        kind = "column"
func.func @before(%g: tensor<64x64xbf16>, %x: tensor<32x64xbf16>) -> (tensor<32x64xbf16>, tensor<64xf32>) {
  %c = "gflow.convert"(%g) {dtype = "f32"} : (tensor<64x64xbf16>) -> tensor<64x64xf32>
  %s = "gflow.reduce"(%c) {dims = array<i64: 0>, kind = "sum"} : (tensor<64x64xf32>) -> tensor<64xf32>
  %b = "gflow.broadcast"(%s) {dims = array<i64: 1>, shape = array<i64: 32, 64>} : (tensor<64xf32>) -> tensor<32x64xf32>
  %h = "gflow.convert"(%b) {dtype = "bf16"} : (tensor<32x64xf32>) -> tensor<32x64xbf16>
  %y = "gflow.add"(%x, %h) : (tensor<32x64xbf16>, tensor<32x64xbf16>) -> tensor<32x64xbf16>
  %w = "gflow.matmul"(%y, %g) : (tensor<32x64xbf16>, tensor<64x64xbf16>) -> tensor<32x64xbf16>
  return %w, %s : tensor<32x64xbf16>, tensor<64xf32>
}
