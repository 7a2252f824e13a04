// RUN: cnncc opt %s | filecheck %s

// Every op once, with and without its optional parts; odd sizes and asymmetric pads.

// CHECK: weights.global @c.w : tensor<6x1x3x2xi16> = #weights.ref<"00">
weights.global @c.w : tensor<6x1x3x2xi16> = #weights.ref<"00">

// CHECK: func.func @main(%x: tensor<2x2x7x5xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5, clamp = [-127, 127]>}
func.func @main(%x: tensor<2x2x7x5xi16> {onnx.name = "x", cnn.quant = #cnn.quant<scale = 0.5, clamp = [-127, 127]>},
                %y: tensor<2x3xi16> {cnn.quant = #cnn.quant<scale = 1.0e-3, zero = 3>}) -> tensor<2x3xf32> {
  // CHECK: cnn.conv %x weights @c.w window <kernel = [3, 2], stride = [2, 1], pad = [1, 0, 2, 1], group = 2> label "c" : tensor<2x2x7x5xi16> -> tensor<2x6x4x5xi32>
  %0 = cnn.conv %x weights @c.w window <kernel = [3, 2], stride = [2, 1], pad = [1, 0, 2, 1], group = 2> label "c" : tensor<2x2x7x5xi16> -> tensor<2x6x4x5xi32>
  // CHECK: cnn.bias %{{.*}} @c.b label "c.bias"
  %1 = cnn.bias %0 @c.b label "c.bias" : tensor<2x6x4x5xi32> -> tensor<2x6x4x5xi32>
  // CHECK: cnn.requant %{{.*}} by <scale = "c.q", zero = 3, clamp = [-127, 127]> label "c.requant"
  %2 = cnn.requant %1 by <scale = "c.q", zero = 3, clamp = [-127, 127]> label "c.requant" : tensor<2x6x4x5xi32> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.clamp %{{.*}} by <clamp = [0, 127]> label "relu"
  %3 = cnn.clamp %2 by <clamp = [0, 127]> label "relu" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.pool "max" %{{.*}} window <kernel = [2, 3], pad = [1, 1, 0, 1], fill = -32768> label "p"
  %4 = cnn.pool "max" %3 window <kernel = [2, 3], pad = [1, 1, 0, 1], fill = -32768> label "p" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.add %{{.*}} residual %{{.*}} : tensor<2x6x4x5xi16> then <factors = "a.q", add_clamp = [-99, 99]> label "a"
  %5 = cnn.add %4 residual %3 : tensor<2x6x4x5xi16> then <factors = "a.q", add_clamp = [-99, 99]> label "a" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.mul %{{.*}} residual %{{.*}} : tensor<2x6x4x5xi16> then <factors = "a.q", multiply = true, add_clamp = [-99, 99]> label "m"
  %m = cnn.mul %4 residual %3 : tensor<2x6x4x5xi16> then <factors = "a.q", multiply = true, add_clamp = [-99, 99]> label "m" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.conv %x residual %{{.*}} : tensor<2x6x4x5xi16> weights @c.w window {{.*}} then <bias = "c.b", scale = "c.q", clamp = [0, 127], factors = "a.q", add_clamp = [-99, 99]> label "d" until "e"
  %6 = cnn.conv %x residual %5 : tensor<2x6x4x5xi16> weights @c.w window <kernel = [3, 2], stride = [2, 1], pad = [1, 0, 2, 1], group = 2> then <bias = "c.b", scale = "c.q", clamp = [0, 127], factors = "a.q", add_clamp = [-99, 99]> label "d" until "e" : tensor<2x2x7x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.reshape %{{.*}} label "f"
  %7 = cnn.reshape %6 label "f" : tensor<2x6x4x5xi16> -> tensor<2x120xi16>
  // CHECK: cnn.host model <"01"> because "no such operator" label "h"(%{{.*}}, %y) [#cnn.quant<scale = 0.5>, #cnn.quant<scale = 0.001, zero = 3>] -> [#cnn.quant<scale = 0.0>]
  %8 = cnn.host model <"01"> because "no such operator" label "h" (%7, %y) [#cnn.quant<scale = 0.5>, #cnn.quant<scale = 1.0e-3, zero = 3>] -> [#cnn.quant<scale = 0.0>] : (tensor<2x120xi16>, tensor<2x3xi16>) -> (tensor<2x3xf32>)
  // CHECK: %[[S:.*]] = cnn.shuffle %{{.*}} groups 3 label "s" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  %9 = cnn.shuffle %6 groups 3 label "s" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.concat %[[S]], %{{.*}} label "cat" : (tensor<2x6x4x5xi16>, tensor<2x6x4x5xi16>) -> tensor<2x12x4x5xi16>
  %10 = cnn.concat %9, %6 label "cat" : (tensor<2x6x4x5xi16>, tensor<2x6x4x5xi16>) -> tensor<2x12x4x5xi16>
  // CHECK: cnn.concat %[[S]], %{{.*}} interleaved label "turns" : (tensor<2x6x4x5xi16>, tensor<2x6x4x5xi16>) -> tensor<2x12x4x5xi16>
  %13 = cnn.concat %9, %6 interleaved label "turns" : (tensor<2x6x4x5xi16>, tensor<2x6x4x5xi16>) -> tensor<2x12x4x5xi16>
  // CHECK: cnn.concat %[[S]], %{{.*}} pixels 1 by 2 label "wide" : (tensor<2x6x4x5xi16>, tensor<2x6x4x5xi16>) -> tensor<2x6x4x10xi16>
  %14 = cnn.concat %9, %6 pixels 1 by 2 label "wide" : (tensor<2x6x4x5xi16>, tensor<2x6x4x5xi16>) -> tensor<2x6x4x10xi16>
  // CHECK: cnn.pool "max" %{{.*}} then <scale = "l", slope = 0.25, shuffle = 2>
  %11 = cnn.pool "max" %6 window <kernel = [1, 1]> then <scale = "l", slope = 0.25, shuffle = 2> : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi16>
  // CHECK: cnn.slice %{{.*}} from 4 label "right" : tensor<2x6x4x5xi16> -> tensor<2x2x4x5xi16>
  %12 = cnn.slice %6 from 4 label "right" : tensor<2x6x4x5xi16> -> tensor<2x2x4x5xi16>
  // CHECK: cnn.lookup %{{.*}} by <clamp = [-8, 1016], table = "t", shift = 2> label "sigmoid" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi8>
  %15 = cnn.lookup %6 by <clamp = [-8, 1016], table = "t", shift = 2> label "sigmoid" : tensor<2x6x4x5xi16> -> tensor<2x6x4x5xi8>
  func.return %8 : tensor<2x3xf32>
}
