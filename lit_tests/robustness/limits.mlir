// RUN: not %gflow-opt %s --cse --split-input-file 2>&1 | FileCheck %s
// RUN: %python -c "print('#a = [' + '9' * 100000 + ']')" > %t.digits
// RUN: not %gflow-opt %t.digits --cse 2>&1 | FileCheck %s --check-prefix=DIGITS
// RUN: %python -c "print('#a0 = [1]'); [print(f'#a{n + 1} = [#a{n}, #a{n}]') for n in range(40)]" > %t.aliases
// RUN: not %gflow-opt %t.aliases --cse 2>&1 | FileCheck %s --check-prefix=ALIASES
// RUN: %python -c "print('#a = affine_map<(d0) -> (' + 'd0 + ' * 5000 + 'd0)>')" > %t.sum
// RUN: not %gflow-opt %t.sum --cse 2>&1 | FileCheck %s --check-prefix=SUM
// RUN: %python -c "print('!a = tensor<' + '1x' * 2000 + 'f32>')" > %t.rank
// RUN: not %gflow-opt %t.rank --cse 2>&1 | FileCheck %s --check-prefix=RANK
// DIGITS: error: a number has more than 1000 digits
// ALIASES: error: the alias #a{{[0-9]+}} stands for more than 4,194,304 tokens
// SUM: error: an expression has more than 2000 operators
// RANK: error: a type has more than 1000 dimensions

// What MLIR cannot parse is refused before it tries.

// CHECK: an op has a million results
func.func @results(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = "gflow.tanh"(%x#2147483648) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
// The lexer would read beyond the end.
// RUN: %python -c "import sys; sys.stdout.write('module {}\n{-# external_resources: { a: { p: \"abc')" > %t.string
// RUN: not %gflow-opt %t.string --cse 2>&1 | FileCheck %s --check-prefix=STRING
// STRING: error: expected '"' in string literal
// Of arrays of unsigned integers MLIR's bindings make errors of their own, or end the process.
// RUN: %python -c "print('func.func @f() attributes {a = array<ui8: 2, 2>} {return}')" > %t.unsigned
// RUN: not %gflow-opt %t.unsigned 2>&1 | FileCheck %s --check-prefix=UNSIGNED
// UNSIGNED: 1:32: error: an array has elements of unsigned type
