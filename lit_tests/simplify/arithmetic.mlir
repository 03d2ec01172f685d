// RUN: %gflow-opt %s --gflow-simplify | FileCheck %s

// Constants are computed.
// CHECK-LABEL: func.func @fold_float(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<5.000000e-01> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<1.750000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   return %[[v1]], %[[v0]] : tensor<4xf32>, tensor<4xf32>
func.func @fold_float() -> (tensor<4xf32>, tensor<4xf32>) {
  %a = "gflow.constant"() {value = dense<3.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %b = "gflow.constant"() {value = dense<4.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.add"(%a, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.div"(%0, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.rsqrt"(%b) : (tensor<4xf32>) -> tensor<4xf32>
  return %1, %2 : tensor<4xf32>, tensor<4xf32>
}

// Integers wrap around, and division by zero gives zero.
// CHECK-LABEL: func.func @fold_integer(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<1073741823> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<-2147483647> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   return %[[v2]], %[[v1]], %[[v0]] : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
func.func @fold_integer() -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>) {
  %a = "gflow.constant"() {value = dense<2147483647> : tensor<4xi32>} : () -> tensor<4xi32>
  %b = "gflow.constant"() {value = dense<2> : tensor<4xi32>} : () -> tensor<4xi32>
  %0 = "gflow.add"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %1 = "gflow.div"(%a, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %z = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
  %2 = "gflow.div"(%a, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0, %1, %2 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>
}

// Halves are rounded.
// CHECK-LABEL: func.func @fold_half(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<2xf64>} : () -> tensor<2xf64>
// CHECK-NEXT:   return %[[v0]] : tensor<2xf64>
func.func @fold_half() -> tensor<2xf64> {
  %a = "gflow.constant"() {value = dense<1.0> : tensor<2xbf16>} : () -> tensor<2xbf16>
  %b = "gflow.constant"() {value = dense<0.00390625> : tensor<2xbf16>} : () -> tensor<2xbf16>
  %0 = "gflow.add"(%a, %b) : (tensor<2xbf16>, tensor<2xbf16>) -> tensor<2xbf16>
  %1 = "gflow.convert"(%0) {dtype = "f64"} : (tensor<2xbf16>) -> tensor<2xf64>
  return %1 : tensor<2xf64>
}

// What has no defined value is not folded.
// CHECK-LABEL: func.func @keep_undefined(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e+20> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%[[v0]]) {dtype = "i32"} : (tensor<4xf32>) -> tensor<4xi32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<7> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.remainder"(%[[v2]], %[[v3]]) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v1]], %[[v4]] : tensor<4xi32>, tensor<4xi32>
func.func @keep_undefined() -> (tensor<4xi32>, tensor<4xi32>) {
  %a = "gflow.constant"() {value = dense<1.0e+20> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.convert"(%a) {dtype = "i32"} : (tensor<4xf32>) -> tensor<4xi32>
  %s = "gflow.constant"() {value = dense<7> : tensor<4xi32>} : () -> tensor<4xi32>
  %z = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
  %1 = "gflow.remainder"(%s, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0, %1 : tensor<4xi32>, tensor<4xi32>
}

// Constants go to the right.
// CHECK-LABEL: func.func @commute(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<3.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.add"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.compare"(%arg0, %[[v0]]) {predicate = "gt"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
// CHECK-NEXT:   return %[[v1]], %[[v2]] : tensor<4xf32>, tensor<4xi1>
func.func @commute(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xi1>) {
  %a = "gflow.constant"() {value = dense<3.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.add"(%a, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.compare"(%a, %x) {predicate = "lt"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  return %0, %1 : tensor<4xf32>, tensor<4xi1>
}

// x + 0.0 is not x where x is -0.0; x + -0.0 is.
// CHECK-LABEL: func.func @add_zero(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.add"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %[[v1]], %arg1 : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
func.func @add_zero(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xi32>) {
  %p = "gflow.constant"() {value = dense<0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %n = "gflow.constant"() {value = dense<-0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %z = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
  %0 = "gflow.add"(%x, %n) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.add"(%x, %p) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.add"(%i, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0, %1, %2 : tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
}

// CHECK-LABEL: func.func @sub_zero(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<-0.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.sub"(%arg0, %[[v2]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.sub"(%[[v1]], %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.sub"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %[[v3]], %[[v4]], %[[v5]], %[[v0]], %[[v6]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>
func.func @sub_zero(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>) {
  %p = "gflow.constant"() {value = dense<0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %n = "gflow.constant"() {value = dense<-0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.sub"(%x, %p) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.sub"(%x, %n) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.sub"(%n, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "gflow.sub"(%p, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = "gflow.sub"(%i, %i) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %5 = "gflow.sub"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3, %4, %5 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @negation(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<-3.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.sub"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.sub"(%arg1, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.add"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.mul"(%arg0, %arg1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %[[v1]], %[[v2]], %[[v3]], %[[v4]], %[[v5]], %[[v6]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
func.func @negation(%x: tensor<4xf32>, %y: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %n = "gflow.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %m = "gflow.neg"(%y) : (tensor<4xf32>) -> tensor<4xf32>
  %0 = "gflow.neg"(%n) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.add"(%x, %m) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.add"(%n, %y) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "gflow.sub"(%x, %m) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %4 = "gflow.mul"(%n, %m) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c = "gflow.constant"() {value = dense<3.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %5 = "gflow.mul"(%n, %c) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %d = "gflow.mul"(%x, %c) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %6 = "gflow.neg"(%d) : (tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3, %4, %5, %6 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @one(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.neg"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.reciprocal"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %arg0, %[[v0]], %[[v1]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
func.func @one(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %o = "gflow.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %m = "gflow.constant"() {value = dense<-1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.mul"(%x, %o) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.div"(%x, %o) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.mul"(%x, %m) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "gflow.div"(%o, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// An infinity times zero is NaN.
// CHECK-LABEL: func.func @times_zero(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v2]], %[[v1]] : tensor<4xf32>, tensor<4xi32>
func.func @times_zero(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xi32>) {
  %p = "gflow.constant"() {value = dense<0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %z = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
  %0 = "gflow.mul"(%x, %p) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.mul"(%i, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0, %1 : tensor<4xf32>, tensor<4xi32>
}

// CHECK-LABEL: func.func @integer_chain(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<12> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<7> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.add"(%arg0, %[[v1]]) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.mul"(%[[v2]], %[[v0]]) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v3]] : tensor<4xi32>
func.func @integer_chain(%i: tensor<4xi32>) -> tensor<4xi32> {
  %a = "gflow.constant"() {value = dense<3> : tensor<4xi32>} : () -> tensor<4xi32>
  %b = "gflow.constant"() {value = dense<4> : tensor<4xi32>} : () -> tensor<4xi32>
  %0 = "gflow.add"(%i, %a) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %1 = "gflow.add"(%0, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %2 = "gflow.mul"(%1, %a) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %3 = "gflow.mul"(%2, %b) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %3 : tensor<4xi32>
}

// Only where the reciprocal is exact and normal.
// CHECK-LABEL: func.func @power_of_two(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.250000e-01> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<3.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<1.70141183E+38> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.constant"() {value = dense<1.401300e-45> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.div"(%arg0, %[[v1]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.div"(%arg0, %[[v2]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.div"(%arg0, %[[v3]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v4]], %[[v5]], %[[v6]], %[[v7]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
func.func @power_of_two(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %a = "gflow.constant"() {value = dense<8.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %b = "gflow.constant"() {value = dense<3.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %d = "gflow.constant"() {value = dense<0x7F000000> : tensor<4xf32>} : () -> tensor<4xf32>
  %e = "gflow.constant"() {value = dense<0x00000001> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.div"(%x, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.div"(%x, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.div"(%x, %d) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %3 = "gflow.div"(%x, %e) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @pow(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<1.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.mul"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.mul"(%[[v2]], %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.constant"() {value = dense<5.000000e-01> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.pow"(%arg0, %[[v4]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.constant"() {value = dense<-5.000000e-01> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.pow"(%arg0, %[[v6]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v8:.+]] = "gflow.reciprocal"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v9:.+]] = "gflow.mul"(%arg0, %arg0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v10:.+]] = "gflow.reciprocal"(%[[v9]]) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v11:.+]] = "gflow.constant"() {value = dense<2.500000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v12:.+]] = "gflow.pow"(%arg0, %[[v11]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v13:.+]] = "gflow.mul"(%arg1, %arg1) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
// CHECK-NEXT:   return %[[v0]], %arg0, %[[v1]], %[[v3]], %[[v5]], %[[v7]], %[[v8]], %[[v10]], %[[v12]], %[[v13]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
func.func @pow(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>) {
  %c0 = "gflow.constant"() {value = dense<0.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.pow"(%x, %c0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c1 = "gflow.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %1 = "gflow.pow"(%x, %c1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c2 = "gflow.constant"() {value = dense<2.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %2 = "gflow.pow"(%x, %c2) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c3 = "gflow.constant"() {value = dense<3.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %3 = "gflow.pow"(%x, %c3) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c4 = "gflow.constant"() {value = dense<0.5> : tensor<4xf32>} : () -> tensor<4xf32>
  %4 = "gflow.pow"(%x, %c4) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c5 = "gflow.constant"() {value = dense<-0.5> : tensor<4xf32>} : () -> tensor<4xf32>
  %5 = "gflow.pow"(%x, %c5) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c6 = "gflow.constant"() {value = dense<-1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %6 = "gflow.pow"(%x, %c6) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c7 = "gflow.constant"() {value = dense<-2.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %7 = "gflow.pow"(%x, %c7) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %c8 = "gflow.constant"() {value = dense<2.5> : tensor<4xf32>} : () -> tensor<4xf32>
  %8 = "gflow.pow"(%x, %c8) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %two = "gflow.constant"() {value = dense<2> : tensor<4xi32>} : () -> tensor<4xi32>
  %9 = "gflow.pow"(%i, %two) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  return %0, %1, %2, %3, %4, %5, %6, %7, %8, %9 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi32>
}

// CHECK-LABEL: func.func @unary_twice(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.abs"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.abs"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.cos"(%arg0) : (tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %[[v0]], %[[v1]], %[[v2]], %arg1 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi1>
func.func @unary_twice(%x: tensor<4xf32>, %p: tensor<4xi1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi1>) {
  %a = "gflow.abs"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %0 = "gflow.abs"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %n = "gflow.neg"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.abs"(%n) : (tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.cos"(%n) : (tensor<4xf32>) -> tensor<4xf32>
  %q = "gflow.not"(%p) : (tensor<4xi1>) -> tensor<4xi1>
  %3 = "gflow.not"(%q) : (tensor<4xi1>) -> tensor<4xi1>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xi1>
}

// NaN: the inverse of < is not >= for floats.
// CHECK-LABEL: func.func @inverted_compare(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<true> : tensor<4xi1>} : () -> tensor<4xi1>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<false> : tensor<4xi1>} : () -> tensor<4xi1>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.compare"(%arg0, %arg0) {predicate = "ne"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.compare"(%arg0, %arg0) {predicate = "lt"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.not"(%[[v3]]) : (tensor<4xi1>) -> tensor<4xi1>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.constant"() {value = dense<3> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.compare"(%arg1, %[[v5]]) {predicate = "ge"} : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
// CHECK-NEXT:   return %[[v2]], %[[v4]], %[[v1]], %[[v0]], %[[v6]] : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
func.func @inverted_compare(%x: tensor<4xf32>, %i: tensor<4xi32>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
  %a = "gflow.compare"(%x, %x) {predicate = "eq"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %0 = "gflow.not"(%a) : (tensor<4xi1>) -> tensor<4xi1>
  %b = "gflow.compare"(%x, %x) {predicate = "lt"} : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xi1>
  %1 = "gflow.not"(%b) : (tensor<4xi1>) -> tensor<4xi1>
  %d = "gflow.compare"(%i, %i) {predicate = "lt"} : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  %e = "gflow.compare"(%i, %i) {predicate = "ge"} : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  %c = "gflow.constant"() {value = dense<3> : tensor<4xi32>} : () -> tensor<4xi32>
  %g = "gflow.compare"(%i, %c) {predicate = "lt"} : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
  %4 = "gflow.not"(%g) : (tensor<4xi1>) -> tensor<4xi1>
  return %0, %1, %d, %e, %4 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
}

// CHECK-LABEL: func.func @extremes(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<2.000000e+00> : tensor<4xf32>} : () -> tensor<4xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.maximum"(%arg0, %[[v0]]) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %[[v1]] : tensor<4xf32>, tensor<4xf32>
func.func @extremes(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %a = "gflow.constant"() {value = dense<1.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %b = "gflow.constant"() {value = dense<2.0> : tensor<4xf32>} : () -> tensor<4xf32>
  %0 = "gflow.maximum"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %m = "gflow.maximum"(%x, %a) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.maximum"(%m, %b) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.minimum"(%1, %1) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %2 : tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @bits(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.constant"() {value = dense<-1> : tensor<4xi32>} : () -> tensor<4xi32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.not"(%arg1) : (tensor<4xi1>) -> tensor<4xi1>
// CHECK-NEXT:   return %[[v1]], %arg0, %arg0, %[[v2]], %arg0, %arg0, %[[v0]], %[[v3]] : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>
func.func @bits(%i: tensor<4xi32>, %p: tensor<4xi1>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>) {
  %z = "gflow.constant"() {value = dense<0> : tensor<4xi32>} : () -> tensor<4xi32>
  %m = "gflow.constant"() {value = dense<-1> : tensor<4xi32>} : () -> tensor<4xi32>
  %t = "gflow.constant"() {value = dense<true> : tensor<4xi1>} : () -> tensor<4xi1>
  %0 = "gflow.and"(%i, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %1 = "gflow.and"(%i, %m) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %2 = "gflow.or"(%i, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %3 = "gflow.or"(%i, %m) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %4 = "gflow.xor"(%i, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %5 = "gflow.shift_left"(%i, %z) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %6 = "gflow.xor"(%i, %i) : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
  %7 = "gflow.xor"(%p, %t) : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
  return %0, %1, %2, %3, %4, %5, %6, %7 : tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi32>, tensor<4xi1>
}

// CHECK-LABEL: func.func @select(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.select"(%arg2, %arg1, %arg0) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
// CHECK-NEXT:   return %arg0, %arg1, %arg0, %[[v0]] : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
func.func @select(%x: tensor<4xf32>, %y: tensor<4xf32>, %p: tensor<4xi1>) -> (tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>) {
  %t = "gflow.constant"() {value = dense<true> : tensor<4xi1>} : () -> tensor<4xi1>
  %n = "gflow.constant"() {value = dense<false> : tensor<4xi1>} : () -> tensor<4xi1>
  %0 = "gflow.select"(%t, %x, %y) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %1 = "gflow.select"(%n, %x, %y) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %2 = "gflow.select"(%p, %x, %x) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  %q = "gflow.not"(%p) : (tensor<4xi1>) -> tensor<4xi1>
  %3 = "gflow.select"(%q, %x, %y) : (tensor<4xi1>, tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
  return %0, %1, %2, %3 : tensor<4xf32>, tensor<4xf32>, tensor<4xf32>, tensor<4xf32>
}

// CHECK-LABEL: func.func @boolean_compare(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.not"(%arg0) : (tensor<4xi1>) -> tensor<4xi1>
// CHECK-NEXT:   return %arg0, %[[v0]], %arg0 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
func.func @boolean_compare(%p: tensor<4xi1>) -> (tensor<4xi1>, tensor<4xi1>, tensor<4xi1>) {
  %t = "gflow.constant"() {value = dense<true> : tensor<4xi1>} : () -> tensor<4xi1>
  %n = "gflow.constant"() {value = dense<false> : tensor<4xi1>} : () -> tensor<4xi1>
  %0 = "gflow.compare"(%p, %t) {predicate = "eq"} : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
  %1 = "gflow.compare"(%p, %n) {predicate = "eq"} : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
  %2 = "gflow.compare"(%p, %n) {predicate = "ne"} : (tensor<4xi1>, tensor<4xi1>) -> tensor<4xi1>
  return %0, %1, %2 : tensor<4xi1>, tensor<4xi1>, tensor<4xi1>
}

// Rounding conversions (f32 to bf16, i32 to f32) stay.
// CHECK-LABEL: func.func @convert(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.convert"(%arg1) {dtype = "bf16"} : (tensor<4xf16>) -> tensor<4xbf16>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.convert"(%arg0) {dtype = "bf16"} : (tensor<4xf32>) -> tensor<4xbf16>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.convert"(%[[v1]]) {dtype = "f32"} : (tensor<4xbf16>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.convert"(%arg2) {dtype = "f32"} : (tensor<4xi32>) -> tensor<4xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.convert"(%[[v3]]) {dtype = "i32"} : (tensor<4xf32>) -> tensor<4xi32>
// CHECK-NEXT:   return %arg0, %arg1, %[[v0]], %[[v2]], %[[v4]] : tensor<4xf32>, tensor<4xf16>, tensor<4xbf16>, tensor<4xf32>, tensor<4xi32>
func.func @convert(%x: tensor<4xf32>, %h: tensor<4xf16>, %i: tensor<4xi32>) -> (tensor<4xf32>, tensor<4xf16>, tensor<4xbf16>, tensor<4xf32>, tensor<4xi32>) {
  %0 = "gflow.convert"(%x) {dtype = "f32"} : (tensor<4xf32>) -> tensor<4xf32>
  %a = "gflow.convert"(%h) {dtype = "f32"} : (tensor<4xf16>) -> tensor<4xf32>
  %1 = "gflow.convert"(%a) {dtype = "f16"} : (tensor<4xf32>) -> tensor<4xf16>
  %2 = "gflow.convert"(%a) {dtype = "bf16"} : (tensor<4xf32>) -> tensor<4xbf16>
  %b = "gflow.convert"(%x) {dtype = "bf16"} : (tensor<4xf32>) -> tensor<4xbf16>
  %3 = "gflow.convert"(%b) {dtype = "f32"} : (tensor<4xbf16>) -> tensor<4xf32>
  %d = "gflow.convert"(%i) {dtype = "f32"} : (tensor<4xi32>) -> tensor<4xf32>
  %4 = "gflow.convert"(%d) {dtype = "i32"} : (tensor<4xf32>) -> tensor<4xi32>
  return %0, %1, %2, %3, %4 : tensor<4xf32>, tensor<4xf16>, tensor<4xbf16>, tensor<4xf32>, tensor<4xi32>
}

// Work on fewer elements, then broadcast.
// CHECK-LABEL: func.func @uniform(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<3.000000e+00> : tensor<f32>} : () -> tensor<f32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.broadcast"(%arg0) {dims = array<i64>, shape = array<i64: 2, 3>} : (tensor<f32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.mul"(%arg0, %[[v0]]) : (tensor<f32>, tensor<f32>) -> tensor<f32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%[[v2]]) {dims = array<i64>, shape = array<i64: 2, 3>} : (tensor<f32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v4:.+]] = "gflow.broadcast"(%arg1) {dims = array<i64: 1>, shape = array<i64: 2, 3>} : (tensor<3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v5:.+]] = "gflow.exp"(%arg1) : (tensor<3xf32>) -> tensor<3xf32>
// CHECK-NEXT:   %[[v6:.+]] = "gflow.broadcast"(%[[v5]]) {dims = array<i64: 1>, shape = array<i64: 2, 3>} : (tensor<3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   %[[v7:.+]] = "gflow.add"(%[[v1]], %[[v4]]) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
// CHECK-NEXT:   return %[[v3]], %[[v6]], %[[v7]] : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
func.func @uniform(%s: tensor<f32>, %r: tensor<3xf32>) -> (tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>) {
  %a = "gflow.broadcast"(%s) {shape = array<i64: 2, 3>, dims = array<i64>} : (tensor<f32>) -> tensor<2x3xf32>
  %c = "gflow.constant"() {value = dense<3.0> : tensor<2x3xf32>} : () -> tensor<2x3xf32>
  %0 = "gflow.mul"(%a, %c) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  %b = "gflow.broadcast"(%r) {shape = array<i64: 2, 3>, dims = array<i64: 1>} : (tensor<3xf32>) -> tensor<2x3xf32>
  %1 = "gflow.exp"(%b) : (tensor<2x3xf32>) -> tensor<2x3xf32>
  %2 = "gflow.add"(%a, %b) : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xf32>
  return %0, %1, %2 : tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xf32>
}

// CHECK-LABEL: func.func @unit_dimensions(
// CHECK-NEXT:   %[[v0:.+]] = "gflow.constant"() {value = dense<2.000000e+00> : tensor<2xf32>} : () -> tensor<2xf32>
// CHECK-NEXT:   %[[v1:.+]] = "gflow.log"(%arg0) : (tensor<2xf32>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v2:.+]] = "gflow.add"(%[[v1]], %[[v0]]) : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xf32>
// CHECK-NEXT:   %[[v3:.+]] = "gflow.broadcast"(%[[v2]]) {dims = array<i64: 0>, shape = array<i64: 2, 5>} : (tensor<2xf32>) -> tensor<2x5xf32>
// CHECK-NEXT:   return %[[v3]] : tensor<2x5xf32>
func.func @unit_dimensions(%x: tensor<2xf32>) -> tensor<2x5xf32> {
  %a = "gflow.reshape"(%x) {shape = array<i64: 2, 1>} : (tensor<2xf32>) -> tensor<2x1xf32>
  %b = "gflow.log"(%a) : (tensor<2x1xf32>) -> tensor<2x1xf32>
  %c = "gflow.constant"() {value = dense<2.0> : tensor<2x1xf32>} : () -> tensor<2x1xf32>
  %d = "gflow.add"(%b, %c) : (tensor<2x1xf32>, tensor<2x1xf32>) -> tensor<2x1xf32>
  %0 = "gflow.broadcast"(%d) {shape = array<i64: 2, 5>, dims = array<i64: 0, 1>} : (tensor<2x1xf32>) -> tensor<2x5xf32>
  return %0 : tensor<2x5xf32>
}

// Unused results go.
// CHECK-LABEL: func.func @dead(
// CHECK-NEXT:   return %arg0 : tensor<4xf32>
func.func @dead(%x: tensor<4xf32>, %g: tensor<2xi64>) -> tensor<4xf32> {
  %a = "gflow.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>
  %b = "gflow.log"(%a) : (tensor<4xf32>) -> tensor<4xf32>
  %c = "gflow.random"(%g) {kind = "uniform", stream = 0 : i64, shape = array<i64: 4>, dtype = "f32"} : (tensor<2xi64>) -> tensor<4xf32>
  return %x : tensor<4xf32>
}
