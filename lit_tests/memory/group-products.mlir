// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-group-products{target=cuda:90}))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse,gflow-group-products{target=cuda:90 most=1}))' | FileCheck %s --check-prefix=ALONE
// RUN: not %gflow-opt %s --gflow-group-products 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not %gflow-opt %s --gflow-group-products=target=cpu 2>&1 | FileCheck %s --check-prefix=NONE

// NONE: products share launches on GPUs: name one as target, such as cuda:90
// ALONE-NOT: gflow.launch

// The first waits for the second, with which it has tiles enough without splitting K.
// CHECK-LABEL: func.func @updates(
// CHECK:         "gflow.exp"
// CHECK:         "gflow.matmul"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         "gflow.matmul"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         return
func.func @updates(%x: tensor<8192x1536xbf16>, %y: tensor<8192x1024xbf16>, %z: tensor<8192x1536xbf16>, %w0: tensor<1536x1024xbf16>, %w1: tensor<1024x1536xbf16>, %v: tensor<64xf32>)
    -> (tensor<1536x1024xbf16> {gflow.alias = 3 : i64}, tensor<1024x1536xbf16> {gflow.alias = 4 : i64}, tensor<64xf32>) {
  %t0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8192x1536xbf16>) -> tensor<1536x8192xbf16>
  %p0 = "gflow.matmul"(%t0, %y) : (tensor<1536x8192xbf16>, tensor<8192x1024xbf16>) -> tensor<1536x1024xbf16>
  %u0 = "gflow.sub"(%w0, %p0) : (tensor<1536x1024xbf16>, tensor<1536x1024xbf16>) -> tensor<1536x1024xbf16>
  %e = "gflow.exp"(%v) : (tensor<64xf32>) -> tensor<64xf32>
  %t1 = "gflow.transpose"(%y) {permutation = array<i64: 1, 0>} : (tensor<8192x1024xbf16>) -> tensor<1024x8192xbf16>
  %p1 = "gflow.matmul"(%t1, %z) : (tensor<1024x8192xbf16>, tensor<8192x1536xbf16>) -> tensor<1024x1536xbf16>
  %u1 = "gflow.sub"(%w1, %p1) : (tensor<1024x1536xbf16>, tensor<1024x1536xbf16>) -> tensor<1024x1536xbf16>
  return %u0, %u1, %e : tensor<1536x1024xbf16>, tensor<1024x1536xbf16>, tensor<64xf32>
}

// Gradients of pointwise convolutions' weights are products, too.
// CHECK-LABEL: func.func @convolutions(
// CHECK:         "gflow.exp"
// CHECK:         "gflow.convolution_weight_grad"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         "gflow.convolution_weight_grad"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         return
func.func @convolutions(%x: tensor<64x2x2x384xf32>, %y: tensor<64x2x2x64xf32>, %w0: tensor<64x1x1x384xf32>, %w1: tensor<384x1x1x64xf32>, %v: tensor<64xf32>)
    -> (tensor<64x1x1x384xf32> {gflow.alias = 2 : i64}, tensor<384x1x1x64xf32> {gflow.alias = 3 : i64}, tensor<64xf32>)
    attributes {gflow.tf32 = ["convolution"]} {
  %p0 = "gflow.convolution_weight_grad"(%x, %y) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", shape = array<i64: 64, 1, 1, 384>} : (tensor<64x2x2x384xf32>, tensor<64x2x2x64xf32>) -> tensor<64x1x1x384xf32>
  %u0 = "gflow.sub"(%w0, %p0) : (tensor<64x1x1x384xf32>, tensor<64x1x1x384xf32>) -> tensor<64x1x1x384xf32>
  %e = "gflow.exp"(%v) : (tensor<64xf32>) -> tensor<64xf32>
  %p1 = "gflow.convolution_weight_grad"(%y, %x) {stride = array<i64: 1, 1>, padding = array<i64: 0, 0>, dilation = array<i64: 1, 1>, groups = 1 : i64, layout = "N*C", shape = array<i64: 384, 1, 1, 64>} : (tensor<64x2x2x64xf32>, tensor<64x2x2x384xf32>) -> tensor<384x1x1x64xf32>
  %u1 = "gflow.sub"(%w1, %p1) : (tensor<384x1x1x64xf32>, tensor<384x1x1x64xf32>) -> tensor<384x1x1x64xf32>
  return %u0, %u1, %e : tensor<64x1x1x384xf32>, tensor<384x1x1x64xf32>, tensor<64xf32>
}

// So are those of depthwise convolutions.
// CHECK-LABEL: func.func @depthwise(
// CHECK:         "gflow.exp"
// CHECK:         "gflow.convolution_weight_grad"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         "gflow.convolution_weight_grad"
// CHECK:         gflow.launch = 0 : i64
// CHECK:         return
func.func @depthwise(%x: tensor<64x2x2x384xf32>, %y: tensor<64x2x2x384xf32>, %w0: tensor<384x3x3x1xf32>, %w1: tensor<384x3x3x1xf32>, %v: tensor<64xf32>)
    -> (tensor<384x3x3x1xf32> {gflow.alias = 2 : i64}, tensor<384x3x3x1xf32> {gflow.alias = 3 : i64}, tensor<64xf32>) {
  %p0 = "gflow.convolution_weight_grad"(%x, %y) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 384 : i64, layout = "N*C", shape = array<i64: 384, 3, 3, 1>} : (tensor<64x2x2x384xf32>, tensor<64x2x2x384xf32>) -> tensor<384x3x3x1xf32>
  %u0 = "gflow.sub"(%w0, %p0) : (tensor<384x3x3x1xf32>, tensor<384x3x3x1xf32>) -> tensor<384x3x3x1xf32>
  %e = "gflow.exp"(%v) : (tensor<64xf32>) -> tensor<64xf32>
  %p1 = "gflow.convolution_weight_grad"(%y, %x) {stride = array<i64: 1, 1>, padding = array<i64: 1, 1>, dilation = array<i64: 1, 1>, groups = 384 : i64, layout = "N*C", shape = array<i64: 384, 3, 3, 1>} : (tensor<64x2x2x384xf32>, tensor<64x2x2x384xf32>) -> tensor<384x3x3x1xf32>
  %u1 = "gflow.sub"(%w1, %p1) : (tensor<384x3x3x1xf32>, tensor<384x3x3x1xf32>) -> tensor<384x3x3x1xf32>
  return %u0, %u1, %e : tensor<384x3x3x1xf32>, tensor<384x3x3x1xf32>, tensor<64xf32>
}

// The first reads an argument that is updated before the second: it cannot wait.
// CHECK-LABEL: func.func @reads_what_is_updated(
// CHECK-NOT:     gflow.launch
// CHECK:         return
func.func @reads_what_is_updated(%x: tensor<8192x1536xbf16>, %y: tensor<8192x1024xbf16>, %z: tensor<8192x1536xbf16>, %w0: tensor<1536x1024xbf16>, %w1: tensor<1024x1536xbf16>)
    -> (tensor<1536x1024xbf16> {gflow.alias = 3 : i64}, tensor<1024x1536xbf16> {gflow.alias = 4 : i64}, tensor<8192x1536xbf16> {gflow.alias = 0 : i64}) {
  %t0 = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8192x1536xbf16>) -> tensor<1536x8192xbf16>
  %p0 = "gflow.matmul"(%t0, %y) : (tensor<1536x8192xbf16>, tensor<8192x1024xbf16>) -> tensor<1536x1024xbf16>
  %u0 = "gflow.sub"(%w0, %p0) : (tensor<1536x1024xbf16>, tensor<1536x1024xbf16>) -> tensor<1536x1024xbf16>
  %e = "gflow.exp"(%z) : (tensor<8192x1536xbf16>) -> tensor<8192x1536xbf16>
  %n = "gflow.neg"(%y) : (tensor<8192x1024xbf16>) -> tensor<8192x1024xbf16>
  %t1 = "gflow.transpose"(%n) {permutation = array<i64: 1, 0>} : (tensor<8192x1024xbf16>) -> tensor<1024x8192xbf16>
  %p1 = "gflow.matmul"(%t1, %z) : (tensor<1024x8192xbf16>, tensor<8192x1536xbf16>) -> tensor<1024x1536xbf16>
  %u1 = "gflow.sub"(%w1, %p1) : (tensor<1024x1536xbf16>, tensor<1024x1536xbf16>) -> tensor<1024x1536xbf16>
  return %u0, %u1, %e : tensor<1536x1024xbf16>, tensor<1024x1536xbf16>, tensor<8192x1536xbf16>
}

// The operands of the first die in it. Held for the second, beside the value that the gradient is computed from, they
// would need more memory than any op does now.
// CHECK-LABEL: func.func @no_room(
// CHECK-NOT:     gflow.launch
// CHECK:         return
func.func @no_room(%x: tensor<8192x1536xbf16>, %y: tensor<8192x1024xbf16>, %w0: tensor<1536x1024xbf16>, %w1: tensor<1024x1536xbf16>)
    -> (tensor<1536x1024xbf16> {gflow.alias = 2 : i64}, tensor<1024x1536xbf16> {gflow.alias = 3 : i64}) {
  %a = "gflow.reverse"(%x) {dims = array<i64: 0>} : (tensor<8192x1536xbf16>) -> tensor<8192x1536xbf16>
  %t0 = "gflow.transpose"(%a) {permutation = array<i64: 1, 0>} : (tensor<8192x1536xbf16>) -> tensor<1536x8192xbf16>
  %p0 = "gflow.matmul"(%t0, %y) : (tensor<1536x8192xbf16>, tensor<8192x1024xbf16>) -> tensor<1536x1024xbf16>
  %u0 = "gflow.sub"(%w0, %p0) : (tensor<1536x1024xbf16>, tensor<1536x1024xbf16>) -> tensor<1536x1024xbf16>
  %b = "gflow.reverse"(%x) {dims = array<i64: 1>} : (tensor<8192x1536xbf16>) -> tensor<8192x1536xbf16>
  %t1 = "gflow.transpose"(%y) {permutation = array<i64: 1, 0>} : (tensor<8192x1024xbf16>) -> tensor<1024x8192xbf16>
  %p1 = "gflow.matmul"(%t1, %b) : (tensor<1024x8192xbf16>, tensor<8192x1536xbf16>) -> tensor<1024x1536xbf16>
  %u1 = "gflow.sub"(%w1, %p1) : (tensor<1024x1536xbf16>, tensor<1024x1536xbf16>) -> tensor<1024x1536xbf16>
  return %u0, %u1 : tensor<1536x1024xbf16>, tensor<1024x1536xbf16>
}
