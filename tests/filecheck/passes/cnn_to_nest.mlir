// RUN: cnncc opt %s -p cnn-to-nest --split-input-file | filecheck %s

// A fused convolution: its own names, window and steps; one loop for each dim of more than one index, n k h w c r s.
// Grouped, strided, dilated and padded on one side: the nest says all of it, c counts the channels of one group.
func.func @conv(%x: tensor<2x6x9x11xi16>) {
  // CHECK: nest.layer "mac" %x weights @w sizes <n = 2, k = 4, c = 3, h = 5, w = 7, r = 3, s = 2> window <kernel = [3, 2], stride = [2, 1], pad = [3, 0, 0, 0], dilation = [1, 4], group = 2, fill = 5, zero = 5> then <bias = "b", scale = "q", clamp = [0, 127]> label "conv0" until "relu0" : tensor<2x6x9x11xi16> -> tensor<2x4x5x7xi8> {
  // CHECK-NEXT: nest.for n {
  // CHECK-NEXT: nest.for k {
  // CHECK-NEXT: nest.for h {
  // CHECK-NEXT: nest.for w {
  // CHECK-NEXT: nest.for c {
  // CHECK-NEXT: nest.for r {
  // CHECK-NEXT: nest.for s {
  // CHECK-NEXT: nest.mac
  %0 = cnn.conv %x weights @w window <kernel = [3, 2], stride = [2, 1], pad = [3, 0, 0, 0], dilation = [1, 4], group = 2, fill = 5, zero = 5>
       then <bias = "b", scale = "q", clamp = [0, 127]> label "conv0" until "relu0" : tensor<2x6x9x11xi16> -> tensor<2x4x5x7xi8>
  func.return
}

// -----

// A fully connected layer of one image: dims of one index have no loop.
func.func @gemm(%x: tensor<1x5x1x1xi16>, %y: tensor<1x7x1x1xi16>) {
  // CHECK: nest.layer "mac" %x residual %y : tensor<1x7x1x1xi16> weights @w
  // CHECK-NEXT: nest.for k {
  // CHECK-NEXT: nest.for c {
  // CHECK-NEXT: nest.mac
  %0 = cnn.conv %x residual %y : tensor<1x7x1x1xi16> weights @w window <kernel = [1, 1]> then <factors = "f"> : tensor<1x5x1x1xi16> -> tensor<1x7x1x1xi16>
  func.return
}

// -----

// Pools: a channel is a group of its own. A maximum needs no steps, and of its input nothing is subtracted.
func.func @pools(%x: tensor<1x3x7x5xi16>) {
  // CHECK: nest.layer "max" %x sizes <n = 1, k = 3, c = 1, h = 4, w = 2, r = 2, s = 3> window <kernel = [2, 3], stride = [2, 2], pad = [1, 0, 0, 0], group = 3, fill = -32768> then <> label "max"
  // CHECK: nest.layer "add" %0 sizes <n = 1, k = 3, c = 1, h = 1, w = 1, r = 4, s = 2> window <kernel = [4, 2], group = 3, fill = 1, zero = 1> then <scale = "q"> label "mean"
  // CHECK: cnn.reshape %1
  %0 = cnn.pool "max" %x window <kernel = [2, 3], stride = [2, 2], pad = [1, 0, 0, 0], fill = -32768, zero = 9> label "max" : tensor<1x3x7x5xi16> -> tensor<1x3x4x2xi16>
  %1 = cnn.pool "sum" %0 window <kernel = [4, 2], fill = 1, zero = 1> then <scale = "q"> label "mean" : tensor<1x3x4x2xi16> -> tensor<1x3x1x1xi16>
  %2 = cnn.reshape %1 label "flat" : tensor<1x3x1x1xi16> -> tensor<1x3xi16>
  func.return
}

// -----

// An elementwise sum or product passes on its first operand; dims that a tensor lacks are 1.
func.func @adds(%x: tensor<1x3x2x5xi16>, %y: tensor<2x7xi16>) {
  // CHECK: nest.layer "copy" %x residual %x : tensor<1x3x2x5xi16> sizes <n = 1, k = 3, c = 1, h = 2, w = 5, r = 1, s = 1> window <kernel = [1, 1], group = 3> then <factors = "f"> label "a"
  // CHECK: nest.layer "copy" %y residual %y : tensor<2x7xi16> sizes <n = 2, k = 7, c = 1, h = 1, w = 1, r = 1, s = 1> window <kernel = [1, 1], group = 7> then <factors = "f"> label "b"
  // CHECK-NEXT: nest.for n {
  // CHECK-NEXT: nest.for k {
  // CHECK-NEXT: nest.mac
  // CHECK: nest.layer "copy" %x residual %x {{.*}} then <factors = "f", multiply = true> label "m"
  %0 = cnn.add %x residual %x : tensor<1x3x2x5xi16> then <factors = "f"> label "a" : tensor<1x3x2x5xi16> -> tensor<1x3x2x5xi16>
  %1 = cnn.add %y residual %y : tensor<2x7xi16> then <factors = "f"> label "b" : tensor<2x7xi16> -> tensor<2x7xi16>
  %2 = cnn.mul %x residual %x : tensor<1x3x2x5xi16> then <factors = "f", multiply = true> label "m" : tensor<1x3x2x5xi16> -> tensor<1x3x2x5xi16>
  func.return
}

// -----

// A concatenation stays; a shuffle is a step of the layer before it.
func.func @concat(%x: tensor<1x4x3x1xi16>, %y: tensor<1x2x3x1xi16>) {
  // CHECK: %[[P:.*]] = nest.layer "max" %x {{.*}} then <shuffle = 2> label "p"
  // CHECK: cnn.concat %[[P]], %y label "c" : (tensor<1x4x3x1xi16>, tensor<1x2x3x1xi16>) -> tensor<1x6x3x1xi16>
  %0 = cnn.pool "max" %x window <kernel = [1, 1]> then <shuffle = 2> label "p" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
  %1 = cnn.concat %0, %y label "c" : (tensor<1x4x3x1xi16>, tensor<1x2x3x1xi16>) -> tensor<1x6x3x1xi16>
  func.return
}
