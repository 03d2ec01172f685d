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

// -----

// What is written into a transposed argument is read with its strides, and a sliced one through a copy.
func.func @strides(%x: tensor<4x8xf32> {gflow.strides = array<i64: 1, 4>}, %y: tensor<4x8xf32> {gflow.strides = array<i64: 20, 2>}) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}, tensor<4x8xf32> {gflow.alias = 1 : i64}, tensor<4x4xf32>) attributes {gflow.arena_size = 128 : i64} {
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:0[1, 4]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %v = "gflow.reverse"(%u) {dims = array<i64: 1>, gflow.buffers = ["arg:1[20, 2]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %c = "gflow.reverse"(%v) {dims = array<i64: 1>, gflow.buffers = ["arena:0"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %t = "gflow.transpose"(%c) {permutation = array<i64: 1, 0>} : (tensor<4x8xf32>) -> tensor<8x4xf32>
  %p = "gflow.matmul"(%u, %t) {gflow.buffers = ["result:2"]} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %u, %v, %p : tensor<4x8xf32>, tensor<4x8xf32>, tensor<4x4xf32>
}

// -----

func.func @other_strides(%x: tensor<4x8xf32> {gflow.strides = array<i64: 1, 4>}, %y: tensor<4x8xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{result 0 in arg:0[8, 1] is read with strides [1, 4]}}
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:0[8, 1]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %u : tensor<4x8xf32>
}

// -----

func.func @no_strides(%x: tensor<4x8xf32> {gflow.strides = array<i64: 1, 4>}, %y: tensor<4x8xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{result 0 in arg:0 is read with strides [1, 4]}}
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:0"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %u : tensor<4x8xf32>
}

// -----

func.func @strides_of_a_result(%y: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{result 0 in result:0[1, 4] is read with strides [8, 1]}}
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["result:0[1, 4]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %u : tensor<4x8xf32>
}

// -----

func.func @malformed(%x: tensor<4x8xf32> {gflow.strides = array<i64: 1, 4>}, %y: tensor<4x8xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{needs a place for each result}}
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:0[1,, 4]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %u : tensor<4x8xf32>
}

// -----

// A product reads rows or columns that lie close together.
func.func @unreadable(%x: tensor<4x8xf32> {gflow.strides = array<i64: 20, 2>}, %w: tensor<8x4xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}, tensor<4x4xf32>) attributes {gflow.arena_size = 0 : i64} {
  %u = "gflow.reverse"(%x) {dims = array<i64: 1>, gflow.buffers = ["arena:0"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // expected-error @+1 {{cannot read operand 0 with strides [20, 2]}}
  %p = "gflow.matmul"(%x, %w) {gflow.buffers = ["result:1"]} : (tensor<4x8xf32>, tensor<8x4xf32>) -> tensor<4x4xf32>
  return %u, %p : tensor<4x8xf32>, tensor<4x4xf32>
}

// -----

// A reshape that is no view in these strides.
func.func @no_view(%x: tensor<4x8xf32> {gflow.strides = array<i64: 1, 4>}, %y: tensor<4x8xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}, tensor<32xf32>) attributes {gflow.arena_size = 128 : i64} {
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:0[1, 4]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // expected-error @+1 {{cannot read operand 0 with strides [1, 4]}}
  %f = "gflow.reshape"(%u) {shape = array<i64: 32>, gflow.buffers = ["arena:0"]} : (tensor<4x8xf32>) -> tensor<32xf32>
  %r = "gflow.reverse"(%f) {dims = array<i64: 0>, gflow.buffers = ["result:1"]} : (tensor<32xf32>) -> tensor<32xf32>
  return %u, %r : tensor<4x8xf32>, tensor<32xf32>
}

// -----

func.func @unwritable(%x: tensor<8x8xf32> {gflow.strides = array<i64: 1, 8>}, %y: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{cannot write result 0 with strides [1, 8]}}
  %u = "gflow.matmul"(%y, %y) {gflow.buffers = ["arg:0[1, 8]"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----

func.func @expanded(%x: tensor<4x8xf32> {gflow.strides = array<i64: 0, 1>}, %y: tensor<4x8xf32>) -> (tensor<4x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{elements of result 0 share memory: its strides are [0, 1]}}
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:0[0, 1]"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %u : tensor<4x8xf32>
}

// -----

// Two halves of one value in different places.
func.func @parts(%x: tensor<4x8xf32>, %w: tensor<16x4xf32>) -> tensor<4x4xf32> attributes {gflow.arena_size = 512 : i64} {
  %a = "gflow.reverse"(%x) {dims = array<i64: 1>, gflow.buffers = ["arena:0"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  // expected-error @+1 {{lies in arena:64, and what it is a part of in arena:0}}
  %b = "gflow.reverse"(%x) {dims = array<i64: 0>, gflow.buffers = ["arena:64"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %c = "gflow.concatenate"(%a, %b) {dim = 1 : i64, gflow.in_place, gflow.buffers = ["arena:0"], operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>} : (tensor<4x8xf32>, tensor<4x8xf32>) -> tensor<4x16xf32>
  %p = "gflow.matmul"(%c, %w) {gflow.buffers = ["result:0"]} : (tensor<4x16xf32>, tensor<16x4xf32>) -> tensor<4x4xf32>
  return %p : tensor<4x4xf32>
}

// -----

func.func @elsewhere_in_arguments(%x: tensor<4x8xf32>, %y: tensor<4x8xf32>) -> tensor<4x8xf32> attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{arg:1 is not this value's place}}
  %u = "gflow.reverse"(%y) {dims = array<i64: 1>, gflow.buffers = ["arg:1"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %v = "gflow.reverse"(%u) {dims = array<i64: 1>, gflow.buffers = ["result:0"]} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %v : tensor<4x8xf32>
}

// -----

// What runs side by side must not read what another one writes.
func.func @launch(%x: tensor<8xf32>, %y: tensor<8xf32>, %z: tensor<8xf32>) -> (tensor<8xf32> {gflow.alias = 0 : i64}, tensor<8xf32> {gflow.alias = 1 : i64}) attributes {gflow.arena_size = 0 : i64} {
  %u = "gflow.reverse"(%z) {dims = array<i64: 0>, gflow.buffers = ["arg:0"], gflow.launch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  // expected-error @+1 {{meets another op of launch 0 in bytes 0 to 32 of arg:0}}
  %v = "gflow.reverse"(%u) {dims = array<i64: 0>, gflow.buffers = ["arg:1"], gflow.launch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  return %u, %v : tensor<8xf32>, tensor<8xf32>
}

// -----

func.func @launch_in_the_arena(%x: tensor<8xf32>, %y: tensor<8xf32>) -> (tensor<8xf32> {gflow.alias = 0 : i64}, tensor<8xf32>) attributes {gflow.arena_size = 64 : i64} {
  %u = "gflow.reverse"(%y) {dims = array<i64: 0>, gflow.buffers = ["arg:0"], gflow.launch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  // expected-error @+1 {{launch 0 writes arena:0; only updates of arguments share one}}
  %v = "gflow.reverse"(%y) {dims = array<i64: 0>, gflow.buffers = ["arena:0"], gflow.launch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %w = "gflow.reverse"(%v) {dims = array<i64: 0>, gflow.buffers = ["result:1"]} : (tensor<8xf32>) -> tensor<8xf32>
  return %u, %w : tensor<8xf32>, tensor<8xf32>
}

// -----

func.func @launch_apart(%x: tensor<8xf32>, %y: tensor<8xf32>, %z: tensor<8xf32>) -> (tensor<8xf32> {gflow.alias = 0 : i64}, tensor<8xf32>, tensor<8xf32> {gflow.alias = 1 : i64}) attributes {gflow.arena_size = 64 : i64} {
  %u = "gflow.reverse"(%z) {dims = array<i64: 0>, gflow.buffers = ["arg:0"], gflow.launch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  %v = "gflow.reverse"(%z) {dims = array<i64: 0>, gflow.buffers = ["result:1"]} : (tensor<8xf32>) -> tensor<8xf32>
  // expected-error @+1 {{the ops of launch 0 do not stand together}}
  %w = "gflow.reverse"(%z) {dims = array<i64: 0>, gflow.buffers = ["arg:1"], gflow.launch = 0 : i64} : (tensor<8xf32>) -> tensor<8xf32>
  return %u, %v, %w : tensor<8xf32>, tensor<8xf32>, tensor<8xf32>
}

// -----

// A kernel that reads the old value at other positions than it writes.
func.func @turned(%x: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  %t = "gflow.transpose"(%x) {permutation = array<i64: 1, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{reads argument 0 after gflow.fused updated it}}
  %u = "gflow.fused"(%t) ({
  ^bb0(%a: tensor<8x8xf32>):
    "gflow.yield"(%a) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {kind = "pointwise", gflow.buffers = ["arg:0"], operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----

func.func @scratch(%x: tensor<8x8xf32>) -> tensor<8x8xf32> attributes {gflow.arena_size = 256 : i64} {
  %0 = "gflow.reverse"(%x) {dims = array<i64: 0>, gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{scratch overlaps a live value}}
  %1 = "gflow.matmul"(%0, %x) {gflow.buffers = ["result:0"], gflow.scratch = array<i64: 128, 64>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %1 : tensor<8x8xf32>
}

// -----

// An argument that is updated before a check would stay so where that fails.
func.func @too_early(%w: tensor<8x8xf32>, %bad: tensor<i1>) -> (tensor<8x8xf32> {gflow.alias = 0 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{updates argument 0 before gflow.check (op 1)}}
  %0 = "gflow.fused"(%w) ({
  ^bb0(%x: tensor<8x8xf32>):
    %1 = "gflow.neg"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    "gflow.yield"(%1) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {gflow.buffers = ["arg:0"], kind = "pointwise", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  "gflow.check"(%bad) {error = "RuntimeError", gflow.buffers = [], message = "bad"} : (tensor<i1>) -> ()
  return %0 : tensor<8x8xf32>
}

// -----

// An all_reduce may reduce in place, if nothing reads the operand meanwhile.
module attributes {gflow.mesh = {axes = ["dp"], sizes = array<i64: 2>}} {
func.func @reduced(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<i8> {gflow.name = "order", gflow.role = "order"}) attributes {gflow.arena_size = 512 : i64} {
  %0 = "gflow.matmul"(%x, %x) {gflow.buffers = ["arena:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  // expected-error @+1 {{result 0 overwrites result 0 of gflow.matmul (op 0), which is needed still}}
  %1:2 = "gflow.collective_start"(%0) {axes = ["dp"], gflow.buffers = ["arena:0", "result:2"], kind = "all_reduce", operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>, ranks = 2 : i64, reduction = "sum", resultSegmentSizes = array<i32: 1, 1, 0, 0, 0, 0, 0, 0>, sequence = 0 : i64} : (tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<i8>)
  %2 = "gflow.matmul"(%0, %x) {gflow.buffers = ["result:0"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %3 = "gflow.collective_wait"(%1#0, %0) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %4 = "gflow.matmul"(%3, %x) {gflow.buffers = ["result:1"]} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %2, %4, %1#1 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<i8>
}
}

// -----

// The epilogue reads the argument that the product would overwrite.
func.func @into_operand(%x: tensor<8x8xf32>, %p: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 1 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{cannot write its contraction to result 0 (into of gflow.kernel) first}}
  %u = "gflow.fused"(%x, %p) ({
  ^bb0(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>):
    %m = "gflow.matmul"(%a, %a) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %s = "gflow.add"(%m, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    "gflow.yield"(%s) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {gflow.buffers = ["arg:1"], gflow.kernel = {into = 0 : i64, kind = "blas"}, kind = "contraction", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----

// There is no such result.
func.func @into_nothing(%x: tensor<8x8xf32>, %p: tensor<8x8xf32>) -> (tensor<8x8xf32> {gflow.alias = 1 : i64}) attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{cannot write its contraction to result 1 (into of gflow.kernel) first}}
  %u = "gflow.fused"(%x, %p) ({
  ^bb0(%a: tensor<8x8xf32>, %b: tensor<8x8xf32>):
    %m = "gflow.matmul"(%a, %a) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %s = "gflow.add"(%m, %b) : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    "gflow.yield"(%s) {operandSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>) -> ()
  }) {gflow.buffers = ["arg:1"], gflow.kernel = {into = 1 : i64, kind = "blas"}, kind = "contraction", operandSegmentSizes = array<i32: 2, 0, 0, 0, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0, 0, 0, 0>} : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %u : tensor<8x8xf32>
}

// -----

// A kernel that widens its operands only would write float32 to a bfloat16 result.
func.func @widened_in_part(%x: tensor<8x8xbf16>) -> tensor<8x8xbf16> attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{must widen all operands and results in half precision (widened of gflow.kernel)}}
  %u = "gflow.matmul"(%x, %x) {gflow.buffers = ["result:0"], gflow.kernel = {kind = "blas", widened = array<i64: 0>}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %u : tensor<8x8xbf16>
}

// -----

// There is no value of this number.
func.func @widened_nothing(%x: tensor<8x8xbf16>) -> tensor<8x8xbf16> attributes {gflow.arena_size = 0 : i64} {
  // expected-error @+1 {{must widen all operands and results in half precision (widened of gflow.kernel)}}
  %u = "gflow.matmul"(%x, %x) {gflow.buffers = ["result:0"], gflow.kernel = {kind = "blas", widened = array<i64: 0, 2, 3>}} : (tensor<8x8xbf16>, tensor<8x8xbf16>) -> tensor<8x8xbf16>
  return %u : tensor<8x8xbf16>
}
