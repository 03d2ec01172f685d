// RUN: %gflow-opt %s --gflow-fuse --gflow-materialize --gflow-plan-memory --gflow-verify-memory | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-plan-memory{strategies=all improve=50},gflow-verify-memory))' | FileCheck %s
// RUN: %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-fuse,gflow-materialize,gflow-plan-memory{compress=false},gflow-verify-memory))' | FileCheck %s --check-prefix=OFF
// RUN: not %gflow-opt %s '--pass-pipeline=builtin.module(func.func(gflow-plan-memory{strategies=sizes}))' 2>&1 | FileCheck %s --check-prefix=BAD

// Compressed, the third product lies where the first did; else each value has bytes of its own.
// CHECK-LABEL: func.func @chain(
// CHECK-SAME:    gflow.arena_size = 512 : i64, gflow.lower_bound = 512 : i64
// OFF-LABEL:   func.func @chain(
// OFF-SAME:      gflow.arena_size = 1024 : i64, gflow.lower_bound = 512 : i64
// OFF:           arena:0
// OFF:           arena:256
// OFF:           arena:512
// OFF:           arena:768
// BAD:         error: no strategy 'sizes'; there are timeline, skyline, size, lifetime, volume, best-fit, and all
func.func @chain(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.reverse"(%0) {dims = array<i64: 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gflow.reverse"(%2) {dims = array<i64: 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "gflow.matmul"(%3, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %4 : tensor<8x8xf32>
}

// A kernel that reduces rows writes its result over them in its last pass.
// CHECK-LABEL: func.func @softmax(
// CHECK-SAME:    gflow.arena_size = 256 : i64, gflow.lower_bound = 256 : i64
// CHECK:         "gflow.matmul"(%arg0, %arg0) {gflow.buffers = ["arena:0"]}
// CHECK:         }) {gflow.buffers = ["arena:0"]
func.func @softmax(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %0 = "gflow.matmul"(%x, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.exp"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.reduce"(%1) {dims = array<i64: 1>, kind = "sum"} : (tensor<8x8xf32>) -> tensor<8xf32>
  %3 = "gflow.broadcast"(%2) {dims = array<i64: 0>, shape = array<i64: 8, 8>} : (tensor<8xf32>) -> tensor<8x8xf32>
  %4 = "gflow.div"(%1, %3) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %5 = "gflow.matmul"(%4, %x) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %5 : tensor<8x8xf32>
}

// A kernel takes over an operand that it reads through a view of other dimensions.
// CHECK-LABEL: func.func @through_a_view(
// CHECK-SAME:    gflow.arena_size = 256 : i64, gflow.lower_bound = 256 : i64
func.func @through_a_view(%x: tensor<8x8xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {
  %0 = "gflow.reverse"(%x) {dims = array<i64: 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.reshape"(%0) {shape = array<i64: 64>} : (tensor<8x8xf32>) -> tensor<64xf32>
  %2 = "gflow.mul"(%1, %y) : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xf32>
  %3 = "gflow.reverse"(%2) {dims = array<i64: 0>} : (tensor<64xf32>) -> tensor<64xf32>
  return %3 : tensor<64xf32>
}
