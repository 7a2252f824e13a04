// RUN: cnncc opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// The window decides the result's shape: floor((7 + 1 + 2 - 3) / 2) + 1 = 4 rows.
// CHECK: cnn.conv: result is (1, 4, 3, 5), the window gives (1, 4, 4, 5)
func.func @main(%x: tensor<1x2x7x5xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 2, 0]> : tensor<1x2x7x5xi16> -> tensor<1x4x3x5xi32>
  func.return
}

// -----

// CHECK: cnn.conv: the operand has shape (2, 7), not n c h w
func.func @main(%x: tensor<2x7xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> : tensor<2x7xi16> -> tensor<2x7xi32>
  func.return
}

// -----

// CHECK: cnn.conv: channels are not a multiple of group 3
func.func @main(%x: tensor<1x2x7x5xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1], group = 3> : tensor<1x2x7x5xi16> -> tensor<1x6x7x5xi32>
  func.return
}

// -----

// A pool keeps its channels.
// CHECK: cnn.pool: result is (1, 3, 7, 5), the window gives (1, 2, 7, 5)
func.func @main(%x: tensor<1x2x7x5xi16>) {
  %0 = cnn.pool "max" %x window <kernel = [1, 1]> : tensor<1x2x7x5xi16> -> tensor<1x3x7x5xi16>
  func.return
}

// -----

// CHECK: cnn.pool: kind is max or sum, not mean
func.func @main(%x: tensor<1x2x7x5xi16>) {
  %0 = cnn.pool "mean" %x window <kernel = [1, 1]> : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  func.return
}

// -----

// CHECK: cnn.add: the epilogue needs factors of a residual that is added
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.add %x residual %x : tensor<1x2xi16> then <clamp = [0, 1]> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.add: the epilogue needs factors of a residual that is added
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.add %x residual %x : tensor<1x2xi16> then <factors = "f", multiply = true> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.mul: the epilogue needs factors of a residual that is multiplied
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.mul %x residual %x : tensor<1x2xi16> then <factors = "f"> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: a residual is multiplied by factors: there are none
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.mul %x residual %x : tensor<1x2xi16> then <multiply = true> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// The sum of two operands is no psum, which biases and scales are for.
// CHECK: cnn.add: the epilogue has no bias, no scale and no table, only factors
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.add %x residual %x : tensor<1x2xi16> then <bias = "b", factors = "f"> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.add: the epilogue has no bias, no scale and no table, only factors
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.add %x residual %x : tensor<1x2xi16> then <scale = "q", factors = "f"> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.add: the residual has the shape of the result, or one pixel a channel
func.func @main(%x: tensor<1x2xi16>, %y: tensor<1x1xi16>) {
  %0 = cnn.add %x residual %y : tensor<1x1xi16> then <factors = "f"> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.reshape: operand and result differ in size
func.func @main(%x: tensor<3x5xi16>) {
  %0 = cnn.reshape %x : tensor<3x5xi16> -> tensor<14xi16>
  func.return
}

// -----

// CHECK: cnn.host: one quant for each operand and each result
func.func @main(%x: tensor<3xi16>) {
  %0 = cnn.host model <"0"> because "r" (%x) [] -> [#cnn.quant<scale = 1.0>] : (tensor<3xi16>) -> (tensor<3xi16>)
  func.return
}

// -----

// CHECK: kernel, stride, pad, dilation need 2, 2, 4, 2 numbers, not (2, 2, 2, 2)
"test.op"() {a = #cnn.window<kernel = [3, 3], pad = [1, 1]>} : () -> ()

// -----

// CHECK: kernel, stride, dilation and group are at least 1, pads at least 0
"test.op"() {a = #cnn.window<kernel = [3, 3], stride = [1, 0]>} : () -> ()

// -----

// CHECK: [3, 2] is no range
"test.op"() {a = #cnn.steps<clamp = [3, 2]>} : () -> ()

// -----

// CHECK: scale is -1.0, it must be a finite number of at least 0
"test.op"() {a = #cnn.quant<scale = -1.0>} : () -> ()

// -----

// CHECK: element is int16, it must be one of float32, int8, uint8
"test.op"() {a = #cnn.quant<scale = 1.0, element = "int16">} : () -> ()

// -----

// CHECK: lo = 2.0 and hi = 1.0 are no range
"test.op"() {a = #cnn.range<lo = 2.0, hi = 1.0, top = 127>} : () -> ()

// -----

// CHECK: top is 0, it must be at least 1
"test.op"() {a = #cnn.range<lo = 0.0, hi = 1.0, top = 0>} : () -> ()

// -----

// CHECK: 'size' is no field here or is given twice; fields: kernel, stride, pad, dilation, group, fill, zero
"test.op"() {a = #cnn.window<size = [3, 3]>} : () -> ()

// -----

// CHECK: a slope is of the products with a scale: there is none
func.func @main(%x: tensor<1x2x1x1xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> then <slope = 0.5> : tensor<1x2x1x1xi16> -> tensor<1x2x1x1xi16>
  func.return
}

// -----

// CHECK: per_position needs a scale, no bias before it and no residual after it
func.func @main(%x: tensor<1x2x3x3xi32>) {
  %0 = cnn.requant %x by <bias = "b", scale = "q", per_position = true> : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi16>
  func.return
}

// -----

// CHECK: per_position needs a scale, no bias before it and no residual after it
func.func @main(%x: tensor<1x2x3x3xi16>) {
  %0 = cnn.pool "sum" %x window <kernel = [1, 1]> then <scale = "q", per_position = true, factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  func.return
}

// -----

// CHECK: per_position needs a scale, no bias before it and no residual after it
func.func @main(%x: tensor<1x2x3x3xi16>) {
  %0 = cnn.pool "sum" %x window <kernel = [1, 1]> then <per_position = true> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  func.return
}

// -----

// CHECK: slope is 0.1, it must be a finite f32 (the nearest is 0.10000000149011612)
func.func @main(%x: tensor<1x2x1x1xi32>) {
  %0 = cnn.requant %x by <scale = "q", slope = 0.1> : tensor<1x2x1x1xi32> -> tensor<1x2x1x1xi16>
  func.return
}

// -----

// CHECK: cnn.concat: the shapes [(1, 2, 7, 5), (1, 2, 7, 4)] along dim 1 do not make (1, 4, 7, 5)
func.func @main(%x: tensor<1x2x7x5xi16>, %y: tensor<1x2x7x4xi16>) {
  %0 = cnn.concat %x, %y : (tensor<1x2x7x5xi16>, tensor<1x2x7x4xi16>) -> tensor<1x4x7x5xi16>
  func.return
}

// -----

// CHECK: cnn.concat: the shapes [(1, 2), (1, 3)] along dim 1 do not make (1, 6)
func.func @main(%x: tensor<1x2xi16>, %y: tensor<1x3xi16>) {
  %0 = cnn.concat %x, %y : (tensor<1x2xi16>, tensor<1x3xi16>) -> tensor<1x6xi16>
  func.return
}

// -----

// CHECK: cnn.concat: the shapes [(1, 2), (1, 3)] differ, so that their channels do not interleave
func.func @main(%x: tensor<1x2xi16>, %y: tensor<1x3xi16>) {
  %0 = cnn.concat %x, %y interleaved : (tensor<1x2xi16>, tensor<1x3xi16>) -> tensor<1x5xi16>
  func.return
}

// -----

// CHECK: cnn.concat: pixels in turn are R by C, both at least 1, and do not interleave channels
func.func @main(%x: tensor<1x2x3x5xi16>, %y: tensor<1x2x3x5xi16>) {
  %0 = cnn.concat %x, %y interleaved pixels 2 by 1 : (tensor<1x2x3x5xi16>, tensor<1x2x3x5xi16>) -> tensor<1x2x6x5xi16>
  func.return
}

// -----

// CHECK: cnn.concat: pixels in turn are R by C, both at least 1, and do not interleave channels
func.func @main(%x: tensor<1x2x3x5xi16>, %y: tensor<1x2x3x5xi16>) {
  %0 = "cnn.concat"(%x, %y) <{rows = 2 : i64}> : (tensor<1x2x3x5xi16>, tensor<1x2x3x5xi16>) -> tensor<1x2x6x5xi16>
  func.return
}

// -----

// CHECK: cnn.concat: the shapes [(1, 2, 3, 5), (1, 2, 3, 5)] are no 2 * 2 operands that make (1, 2, 6, 10), pixel by pixel
func.func @main(%x: tensor<1x2x3x5xi16>, %y: tensor<1x2x3x5xi16>) {
  %0 = cnn.concat %x, %y pixels 2 by 2 : (tensor<1x2x3x5xi16>, tensor<1x2x3x5xi16>) -> tensor<1x2x6x10xi16>
  func.return
}

// -----

// CHECK: cnn.concat: the shapes [(1, 2, 3, 5), (1, 3, 3, 5)] are no 2 * 1 operands that make (1, 2, 6, 5), pixel by pixel
func.func @main(%x: tensor<1x2x3x5xi16>, %y: tensor<1x3x3x5xi16>) {
  %0 = cnn.concat %x, %y pixels 2 by 1 : (tensor<1x2x3x5xi16>, tensor<1x3x3x5xi16>) -> tensor<1x2x6x5xi16>
  func.return
}

// -----

// CHECK: cnn.concat: the shapes [(1, 2, 3, 5), (1, 2, 3, 5)] are no 2 * 1 operands that make (1, 2, 3, 10), pixel by pixel
func.func @main(%x: tensor<1x2x3x5xi16>, %y: tensor<1x2x3x5xi16>) {
  %0 = cnn.concat %x, %y pixels 2 by 1 : (tensor<1x2x3x5xi16>, tensor<1x2x3x5xi16>) -> tensor<1x2x3x10xi16>
  func.return
}

// -----

// CHECK: cnn.concat: 1 operands make (4,), not n c, n c h or n c h w
func.func @main(%x: tensor<4xi16>) {
  %0 = cnn.concat %x : (tensor<4xi16>) -> tensor<4xi16>
  func.return
}

// -----

// CHECK: cnn.shuffle: (1, 6, 1, 1) has no channels that make 4 equal groups
func.func @main(%x: tensor<1x6x1x1xi16>) {
  %0 = cnn.shuffle %x groups 4 : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  func.return
}

// -----

// CHECK: cnn.shuffle: operand and result have one type
func.func @main(%x: tensor<1x6x1x1xi16>) {
  %0 = cnn.shuffle %x groups 3 : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi8>
  func.return
}

// -----

// CHECK: cnn.pool: (1, 6, 1, 1) has no channels that make 5 equal groups
func.func @main(%x: tensor<1x6x1x1xi16>) {
  %0 = cnn.pool "max" %x window <kernel = [1, 1]> then <shuffle = 5> : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  func.return
}

// -----

// CHECK: a residual's channels are not shuffled: no shuffle after it
func.func @main(%x: tensor<1x6x1x1xi16>) {
  %0 = cnn.add %x residual %x : tensor<1x6x1x1xi16> then <factors = "f", shuffle = 2> : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  func.return
}

// -----

// CHECK: cnn.slice: (1, 6, 7, 5) and (1, 2, 7, 4) are not n c … with other channels alone
func.func @main(%x: tensor<1x6x7x5xi16>) {
  %0 = cnn.slice %x from 1 : tensor<1x6x7x5xi16> -> tensor<1x2x7x4xi16>
  func.return
}

// -----

// CHECK: cnn.slice: channels 5 to 6 of a value that has channels 0 to 5
func.func @main(%x: tensor<1x6xi16>) {
  %0 = cnn.slice %x from 5 : tensor<1x6xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.mul: the residual has the shape of the result, or one pixel a channel
func.func @main(%x: tensor<1x2x3x4xi16>, %y: tensor<1x1x3x4xi16>) {
  %0 = cnn.mul %x residual %y : tensor<1x1x3x4xi16> then <factors = "f", multiply = true> : tensor<1x2x3x4xi16> -> tensor<1x2x3x4xi16>
  func.return
}

// -----

// CHECK: cnn.pool: the residual has the shape of the result, or one pixel a channel
func.func @main(%x: tensor<1x2x3x4xi16>, %y: tensor<1x2x1x4xi16>) {
  %0 = cnn.pool "max" %x residual %y : tensor<1x2x1x4xi16> window <kernel = [1, 1]> then <factors = "f"> : tensor<1x2x3x4xi16> -> tensor<1x2x3x4xi16>
  func.return
}

// -----

// CHECK: cnn.add: the first operand and the result have one shape
func.func @main(%x: tensor<1x2xi16>, %y: tensor<1x1xi16>) {
  %0 = cnn.add %y residual %x : tensor<1x2xi16> then <factors = "f"> : tensor<1x1xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: shift is 16: it is 0 to 15, and 0 without a table
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.lookup %x by <clamp = [0, 9], table = "t", shift = 16> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: shift is 1: it is 0 to 15, and 0 without a table
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.clamp %x by <clamp = [0, 9], shift = 1> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// Integers -1 to 512 are one more than 256 * 2 and the first.
// CHECK: table t has 257 entries for every 2-th integer, which end before the clamp [-1, 512]: give a greater shift or a narrower clamp
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.lookup %x by <clamp = [-1, 511], table = "t", shift = 1> : tensor<1x2xi16> -> tensor<1x2xi16>
  %1 = cnn.lookup %x by <clamp = [-1, 512], table = "t", shift = 1> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: table t has 257 entries for every 32768-th integer, which end before the clamp [-2147483648, 2147483647]
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.lookup %x by <table = "t", shift = 15> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.lookup: it has a clamp, a table and its shift, and nothing else
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.lookup %x by <clamp = [0, 9]> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.lookup: it has a clamp, a table and its shift, and nothing else
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.lookup %x by <scale = "q", clamp = [0, 9], table = "t"> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}

// -----

// CHECK: cnn.add: the epilogue has no bias, no scale and no table, only factors
func.func @main(%x: tensor<1x2xi16>) {
  %0 = cnn.add %x residual %x : tensor<1x2xi16> then <clamp = [0, 9], factors = "f", table = "t"> : tensor<1x2xi16> -> tensor<1x2xi16>
  func.return
}
