// RUN: cnncc opt %s -p 'cnn-choose-scheme{tin=5},cnn-partition-kernel' | filecheck %s

// Only what is marked, and has a stride. The cut image has the padding, more rows and columns so that whole small
// windows fit, and the zero point, which is added again. The free names are taken.
// CHECK:      weights.global @w.pieces_ : tensor<4x12x2x2xi16>
// CHECK-NEXT: weights.global @in.cut_.w : tensor<24x1x2x3xi16>
// CHECK-NEXT: weights.global @in.cut_.b : tensor<24xi32>
// CHECK-NEXT: weights.global @w.pieces : tensor<1xi16>
// CHECK-NEXT: weights.global @v : tensor<2x6x3x3xi16>
// CHECK-NOT:  weights.global @w :
// CHECK:      %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "in.cut"
// CHECK-NEXT: %[[B:.*]] = cnn.conv %[[A]] weights @in.cut_.w window <kernel = [2, 3], stride = [2, 3], pad = [1, 0, 0, 2], group = 4, fill = 3, zero = 3> then <bias = "in.cut_.b", clamp = [-32768, 32767]> label "in.cut_" : tensor<1x4x7x7xi16> -> tensor<1x24x4x3xi16>
// CHECK-NEXT: %[[C:.*]] = cnn.conv %[[B]] residual %y : tensor<1x4x3x2xi16> weights @w.pieces_ window <kernel = [2, 2], group = 2, fill = 3, zero = 3> then <scale = "q", factors = "f"> label "in" until "relu" {cnn.scheme = "kernel partition"} : tensor<1x24x4x3xi16> -> tensor<1x4x3x2xi16>
// Stride 1 is kernel partition already.
// CHECK-NEXT: cnn.conv %[[C]] weights @v window <kernel = [1, 1]> label "one"
// CHECK-NEXT: cnn.conv %z weights @v window <kernel = [3, 3], stride = [2, 2]> label "deep"
weights.global @w : tensor<4x2x3x5xi16> = dense<1> : tensor<4x2x3x5xi16>
weights.global @w.pieces : tensor<1xi16> = dense<1> : tensor<1xi16>
weights.global @v : tensor<2x6x3x3xi16> = dense<1> : tensor<2x6x3x3xi16>
func.func @main(%x: tensor<1x4x7x7xi16>, %y: tensor<1x4x3x2xi16>, %z: tensor<1x6x7x7xi16>) -> (tensor<1x2x3x2xi16>, tensor<1x2x3x3xi16>) {
  %0 = cnn.pool "max" %x window <kernel = [1, 1]> label "in.cut" : tensor<1x4x7x7xi16> -> tensor<1x4x7x7xi16>
  %1 = cnn.conv %0 residual %y : tensor<1x4x3x2xi16> weights @w window <kernel = [3, 5], stride = [2, 3], pad = [1, 0, 0, 1], group = 2, fill = 3, zero = 3> then <scale = "q", factors = "f"> label "in" until "relu" : tensor<1x4x7x7xi16> -> tensor<1x4x3x2xi16>
  %2 = cnn.conv %1 weights @v window <kernel = [1, 1]> label "one" : tensor<1x4x3x2xi16> -> tensor<1x2x3x2xi16>
  %3 = cnn.conv %z weights @v window <kernel = [3, 3], stride = [2, 2]> label "deep" : tensor<1x6x7x7xi16> -> tensor<1x2x3x3xi16>
  func.return %2, %3 : tensor<1x2x3x2xi16>, tensor<1x2x3x3xi16>
}

// RUN: cnncc opt %s -p 'cnn-partition-kernel{layers=one,deep}' | filecheck %s --check-prefix NAMED
// Weights that another layer reads stay.
// NAMED: weights.global @v.pieces : tensor<2x24x2x2xi16>
// NAMED: weights.global @v :
// NAMED: weights @w window <kernel = [3, 5]
// NAMED: weights @v.pieces window <kernel = [2, 2]> label "deep"

// RUN: not cnncc opt %s -p 'cnn-partition-kernel{layers=deep,relu}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: cnn-partition-kernel: layer 'relu' is no convolution of the network: these are: in, one, deep
