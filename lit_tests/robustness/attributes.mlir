// RUN: %gflow-opt %s --pipeline-for=cpu --split-input-file --verify-diagnostics
// RUN: not %gflow-opt %s --gflow-report --split-input-file 2>&1 | FileCheck %s
// RUN: not %gflow-opt %s --emit=dot --split-input-file 2>&1 | FileCheck %s
// CHECK-NOT: internal error

// Attributes of functions are checked as those of ops are.

// expected-error@+1 {{argument 0: a size ('gflow.stand_in') needs 'gflow.min' too}}
func.func @no_range(%n: tensor<i64> {gflow.role = "size", gflow.stand_in = 1000000007 : i64}) {
  return
}

// -----
// expected-error@+1 {{argument 0: 'gflow.stand_in' must be 1000000007 or 1000900009, found 1}}
func.func @no_prime(%n: tensor<i64> {gflow.min = 1 : i64, gflow.max = 4 : i64, gflow.stand_in = 1 : i64}) {
  return
}

// -----
// expected-error@+1 {{argument 0: a size has a range from 0 up, found 5 to 4}}
func.func @no_size(%n: tensor<i64> {gflow.min = 5 : i64, gflow.max = 4 : i64, gflow.stand_in = 1000000007 : i64}) {
  return
}

// -----
// expected-error@+1 {{argument 0: 'gflow.min' must be an i64 integer, found "a"}}
func.func @text(%n: tensor<i64> {gflow.min = "a", gflow.max = 4 : i64, gflow.stand_in = 1000000007 : i64}) {
  return
}

// -----
// expected-error@+1 {{argument 0: 'gflow.name' must be a string, found 5 : i64}}
func.func @name(%x: tensor<4xf32> {gflow.name = 5 : i64}) -> tensor<4xf32> {
  %0 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// expected-error@+1 {{result 0: 'gflow.name' must be a string, found unit}}
func.func @result(%x: tensor<4xf32>) -> (tensor<4xf32> {gflow.name}) {
  %0 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
// expected-error@+1 {{'gflow.tf32' must be an array of strings, found [1]}}
func.func @tf32(%x: tensor<4xf32>) -> tensor<4xf32> attributes {gflow.tf32 = [1]} {
  %0 = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----
func.func @launch(%x: tensor<4xf32>) -> tensor<4xf32> {
  // expected-error@+1 {{'gflow.launch' must be an i64 integer, found "a"}}
  %0 = "gflow.exp"(%x) {gflow.launch = "a"} : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}

// -----

// expected-error@+1 {{result 0: 'gflow.role' must be a string, found tensor<4xf32>}}
func.func @role_of_a_result(%x: tensor<2xf32>) -> (tensor<2xf32> {gflow.role = tensor<4xf32>}) {
  return %x : tensor<2xf32>
}

// -----

func.func @name_of_a_gradient(%x: tensor<2xf32>) -> tensor<2xf32> {
  // expected-error@+1 {{'gflow.gradient' must be a string, found 1 : i64}}
  %0 = "gflow.neg"(%x) {gflow.gradient = 1 : i64} : (tensor<2xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
