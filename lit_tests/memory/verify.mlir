// RUN: %gflow-opt %s --gflow-verify-memory --split-input-file --verify-diagnostics

// A sound plan: the second product may lie where the first lay, once that was read.
func.func @sound(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 512 : i64} {
  %0 = "gflow.matmul"(%x, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.matmul"(%0, %x) {gflow.buffers = ["arena:256"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gflow.matmul"(%2, %x) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %3 : tensor<8x8xf32>
}

// -----

func.func @overlap(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 512 : i64} {
  %0 = "gflow.matmul"(%x, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{result 0 overwrites result 0 of gflow.matmul (op 0), which is needed still}}
  %1 = "gflow.matmul"(%0, %x) {gflow.buffers = ["arena:192"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %x) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

// A view keeps what it looks at alive.
func.func @view(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 512 : i64} {
  %0 = "gflow.matmul"(%x, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %t = "gflow.transpose"(%0) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{result 0 overwrites result 0 of gflow.matmul (op 0), which is needed still}}
  %1 = "gflow.matmul"(%x, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %2 = "gflow.matmul"(%1, %t) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2 : tensor<8x8xf32>
}

// -----

func.func @outside(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 192 : i64} {
  // expected-error @+1 {{bytes 0 to 256 are not an aligned part of an arena of 192}}
  %0 = "gflow.matmul"(%x, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %1 = "gflow.matmul"(%0, %x) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// -----

func.func @old_value(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}, tensor<8x8xf32>) attributes {gflow.arena_size = 0 : i64} {
  %u = "gflow.matmul"(%g, %g) {gflow.buffers = ["arg:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{reads argument 0 after gflow.matmul updated it}}
  %m = "gflow.matmul"(%w, %g) {gflow.buffers = ["result:1"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u, %m : tensor<8x8xf32>, tensor<8x8xf32>
}

// -----

func.func @elsewhere(%w: tensor<8x8xf32>, %g: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 256 : i64} {
  %u = "gflow.matmul"(%g, %g) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{result 0 of the function must lie in arg:0}}
  return %u : tensor<8x8xf32>
}

// -----

// expected-error @+1 {{the function has no gflow.arena_size; run gflow-plan-memory first}}
func.func @not_planned(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  return %x : tensor<8x8xf32>
}
