// RUN: %gflow-opt %s --pass-pipeline="builtin.module(func.func(gflow-rematerialize{budget=1}))" --verify-diagnostics

// What is wrong is told of the function, not of the copy that the pass plans.

// expected-error@+1 {{more than can be addressed}}
func.func @huge(%x: tensor<4611686018427387904x1024xf32>) {
  return
}
