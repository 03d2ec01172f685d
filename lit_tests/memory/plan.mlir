// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{epilogues=false},gflow-materialize,gflow-plan-memory))' | FileCheck %s
// RUN: %gflow-opt %s --pass-pipeline='builtin.module(func.func(gflow-fuse{epilogues=false},gflow-materialize,gflow-plan-memory))' | %gflow-opt | FileCheck %s

// Temporaries lie in the arena, results in the results' buffers; the arena is as small as can be.
// CHECK-LABEL: func.func @two_kernels(
// CHECK-SAME:    attributes {gflow.arena_size = [[SIZE:[0-9]+]] : i64, gflow.lower_bound = [[SIZE]] : i64}
// CHECK:         }) {gflow.buffers = ["arena:{{[0-9]+}}"]
// CHECK:         "gflow.matmul"({{.*}}) {gflow.buffers = ["arena:{{[0-9]+}}"]}
// CHECK:         }) {gflow.buffers = ["result:0"]
func.func @two_kernels(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> tensor<8x4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<8x16xf32>) -> tensor<8x16xf32>
  %1 = "gflow.add"(%0, %x) : (tensor<8x16xf32>, tensor<8x16xf32>) -> tensor<8x16xf32>
  %2 = "gflow.matmul"(%1, %w) : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %3 = "gflow.tanh"(%2) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %3 : tensor<8x4xf32>
}

// A kernel takes over the buffer of an operand that dies in it; a GEMM doesn't.
// CHECK-LABEL: func.func @take_over(
// CHECK-SAME:    attributes {gflow.arena_size = 512 : i64, gflow.lower_bound = 512 : i64}
// CHECK:         "gflow.matmul"({{.*}}) {gflow.buffers = ["arena:[[AT:[0-9]+]]"]}
// CHECK:         }) {gflow.buffers = ["arena:[[AT]]"]
// CHECK:         "gflow.matmul"({{.*}}) {gflow.buffers = ["arena:
// CHECK:         }) {gflow.buffers = ["result:0"]
func.func @take_over(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.tanh"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gflow.tanh"(%2) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// An update lies in the storage of its argument; a view has no place of its own.
// CHECK-LABEL: func.func @update(
// CHECK-SAME:    attributes {gflow.arena_size = 0 : i64, gflow.lower_bound = 0 : i64}
// CHECK:         "gflow.transpose"({{.*}}) {permutation = array<i64: 1, 0>}
// CHECK:         }) {gflow.buffers = ["arg:0"]
func.func @update(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) {
  %t = "gflow.transpose"(%g) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %u = "gflow.sub"(%w, %t) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}
