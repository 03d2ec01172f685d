// RUN: %gflow-opt %s --pipeline-for=cuda:90 --emit=triton --target=cuda:90 | FileCheck %s

// A row for each program, in blocks.

// CHECK:     @rows for cuda:90: 1 steps, 1 kernels
// CHECK:     def argmax_{{[0-9a-f]+}}(
// CHECK:       for start in range(0, n, COLS):
// CHECK:         better = (value > best) | ((value != value) & (best == best))
// CHECK:       found = tl.min(tl.where(chosen, place, 2147483647), 1)
func.func @rows(%x: tensor<4096x50257xbf16>) -> tensor<4096xi64> {
  %0 = "gflow.reduce"(%x) {dims = array<i64: 1>, kind = "argmax"} : (tensor<4096x50257xbf16>) -> tensor<4096xi64>
  return %0 : tensor<4096xi64>
}

// One long row: programs share it, and a second launch compares what they found.

// CHECK:     @whole for cuda:90: 2 steps, 2 kernels
// CHECK:     def argmin_partial_{{[0-9a-f]+}}(
// CHECK:       high = tl.minimum(low + share, n)
// CHECK:       tl.store(places + where, found, mask=row_ok)
// CHECK:     def argmin_{{[0-9a-f]+}}(
// CHECK:       best = tl.load(values + row * pieces + col
func.func @whole(%x: tensor<5000000xi32>) -> tensor<i64> {
  %0 = "gflow.reduce"(%x) {dims = array<i64: 0>, kind = "argmin"} : (tensor<5000000xi32>) -> tensor<i64>
  return %0 : tensor<i64>
}
