// RUN: cnncc opt %s -p cnn-legalize | filecheck %s

// A clamp and a requantisation that no epilogue could take become poolings over one pixel, under the same name.
// CHECK: %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [0, 9]> label "relu" : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi16>
// CHECK-NEXT: %[[B:.*]] = cnn.pool "max" %[[A]] window <kernel = [1, 1]> then <scale = "q", zero = 1, clamp = [-7, 7]> : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi8>
// Sums of 32 bits are no operands of a pooling.
// CHECK-NEXT: %[[C:.*]] = cnn.clamp %y by <clamp = [0, 9]>
// CHECK-NEXT: func.return %[[B]], %[[C]]
func.func @main(%x: tensor<2x3x7x5xi16>, %y: tensor<2x3x7x5xi32>) -> (tensor<2x3x7x5xi8>, tensor<2x3x7x5xi32>) {
  %0 = cnn.clamp %x by <clamp = [0, 9]> label "relu" : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi16>
  %1 = cnn.requant %0 by <scale = "q", zero = 1, clamp = [-7, 7]> : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi8>
  %2 = cnn.clamp %y by <clamp = [0, 9]> : tensor<2x3x7x5xi32> -> tensor<2x3x7x5xi32>
  func.return %1, %2 : tensor<2x3x7x5xi8>, tensor<2x3x7x5xi32>
}

// A shuffle, the operands of concatenations: a value that has a place already, one that is a reshape to other rows
// and columns, and one that is a reshape of the same. A concatenation and an input are in place; so is what is read elsewhere too.
// CHECK: func.func @concat
// CHECK-NEXT: %[[S:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <shuffle = 2> label "s" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
// What the user gives is a tensor of its own.
// CHECK-NEXT: %[[C0:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "c.copy1" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
// CHECK-NEXT: %[[C1:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "c.copy2" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
// CHECK-NEXT: %[[C:.*]] = cnn.concat %[[S]], %[[C0]], %[[C1]] label "c"
// CHECK-NEXT: %[[R:.*]] = cnn.reshape %[[C]] : tensor<1x12x3x1xi16> -> tensor<1x12x3xi16>
// CHECK-NEXT: %[[F:.*]] = cnn.reshape %y : tensor<1x4x3x1xi16> -> tensor<1x6x2x1xi16>
// CHECK-NEXT: %[[D0:.*]] = cnn.pool "max" %[[F]] window <kernel = [1, 1]> label "d.copy0" : tensor<1x6x2x1xi16> -> tensor<1x6x2x1xi16>
// CHECK-NEXT: %[[D1:.*]] = cnn.pool "max" %z window <kernel = [1, 1]> label "d.copy1"
// CHECK-NEXT: %[[D:.*]] = cnn.concat %[[D0]], %[[D1]] label "d"
// CHECK-NEXT: %[[G:.*]] = cnn.reshape %z : tensor<1x6x2x1xi16> -> tensor<1x6x2xi16>
// CHECK-NEXT: %[[E1:.*]] = cnn.reshape %[[G]] : tensor<1x6x2xi16> -> tensor<1x6x2x1xi16>
// CHECK-NEXT: %[[E2:.*]] = cnn.pool "max" %[[E1]] window <kernel = [1, 1]> label "e.copy0"
// CHECK-NEXT: %[[E3:.*]] = cnn.reshape %[[E2]] : tensor<1x6x2x1xi16> -> tensor<1x6x2xi16>
// CHECK-NEXT: %[[E:.*]] = cnn.concat %[[E3]] label "e"
// CHECK-NEXT: %[[H:.*]] = cnn.concat %[[R]] label "h"
func.func @concat(%x: tensor<1x4x3x1xi16>, %y: tensor<1x4x3x1xi16>, %z: tensor<1x6x2x1xi16>) {
  %s = cnn.shuffle %x groups 2 label "s" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
  %c = cnn.concat %s, %x, %x label "c" : (tensor<1x4x3x1xi16>, tensor<1x4x3x1xi16>, tensor<1x4x3x1xi16>) -> tensor<1x12x3x1xi16>
  %r = cnn.reshape %c : tensor<1x12x3x1xi16> -> tensor<1x12x3xi16>
  %f = cnn.reshape %y : tensor<1x4x3x1xi16> -> tensor<1x6x2x1xi16>
  %d = cnn.concat %f, %z label "d" : (tensor<1x6x2x1xi16>, tensor<1x6x2x1xi16>) -> tensor<1x12x2x1xi16>
  %g = cnn.reshape %z : tensor<1x6x2x1xi16> -> tensor<1x6x2xi16>
  %e = cnn.concat %g label "e" : (tensor<1x6x2xi16>) -> tensor<1x6x2xi16>
  %h = cnn.concat %r label "h" : (tensor<1x12x3xi16>) -> tensor<1x12x3xi16>
  func.return
}

// A shuffle of a concatenation interleaves its operands: what a layer computes for it alone, a copy of what others read,
// too, and a copy of a sum. By another number of groups it stays a layer.
// CHECK: func.func @interleaved
// CHECK-NEXT: %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "a"
// CHECK-NEXT: %[[B:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "b"
// CHECK-NEXT: %[[D:.*]] = cnn.add %[[B]] residual %x
// CHECK-NEXT: %[[B2:.*]] = cnn.pool "max" %[[B]] window <kernel = [1, 1]> label "s.copy1"
// CHECK-NEXT: %[[D2:.*]] = cnn.pool "max" %[[D]] window <kernel = [1, 1]> label "s.copy2"
// CHECK-NEXT: %[[S:.*]] = cnn.concat %[[A]], %[[B2]], %[[D2]] interleaved label "s"
// CHECK-NEXT: %[[E:.*]] = cnn.concat %[[S]] label "e"
// CHECK-NEXT: cnn.pool "max" %[[E]] window <kernel = [1, 1]> then <shuffle = 2> label "t"
func.func @interleaved(%x: tensor<1x4x3x1xi16>) {
  %a = cnn.pool "max" %x window <kernel = [1, 1]> label "a" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
  %b = cnn.pool "max" %x window <kernel = [1, 1]> label "b" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
  %d = cnn.add %b residual %x : tensor<1x4x3x1xi16> then <factors = "f"> label "d" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
  %c = cnn.concat %a, %b, %d label "c" : (tensor<1x4x3x1xi16>, tensor<1x4x3x1xi16>, tensor<1x4x3x1xi16>) -> tensor<1x12x3x1xi16>
  %s = cnn.shuffle %c groups 3 label "s" : tensor<1x12x3x1xi16> -> tensor<1x12x3x1xi16>
  %e = cnn.concat %s label "e" : (tensor<1x12x3x1xi16>) -> tensor<1x12x3x1xi16>
  %t = cnn.shuffle %e groups 2 label "t" : tensor<1x12x3x1xi16> -> tensor<1x12x3x1xi16>
  func.return
}

// Pixels in turn: what a layer computes for them alone is in its place, also as a slice of a concatenation before.
// Copied are what others read, what is there twice, sums, concatenations, and slices of other channels. Nothing joins
// slices. The result is an operand like a layer's, but not of pixels in turn.
// CHECK: func.func @in_turn
// CHECK-NEXT: %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "a"
// CHECK-NEXT: %[[B:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "b"
// CHECK-NEXT: %[[D:.*]] = cnn.add %[[B]] residual %x
// CHECK-NEXT: %[[B2:.*]] = cnn.pool "max" %[[B]] window <kernel = [1, 1]> label "p.copy1"
// CHECK-NEXT: %[[D2:.*]] = cnn.pool "max" %[[D]] window <kernel = [1, 1]> label "p.copy2"
// CHECK-NEXT: %[[P:.*]] = cnn.concat %[[A]], %[[B2]], %[[D2]] pixels 3 by 1 label "p"
// CHECK-NEXT: %[[P2:.*]] = cnn.pool "max" %[[P]] window <kernel = [1, 1]> label "q.copy0"
// CHECK-NEXT: %[[P3:.*]] = cnn.pool "max" %[[P]] window <kernel = [1, 1]> label "q.copy1"
// CHECK-NEXT: %[[Q:.*]] = cnn.concat %[[P2]], %[[P3]] pixels 1 by 2 label "q"
// CHECK-NEXT: %[[U:.*]] = cnn.pool "max" %[[Q]] window <kernel = [1, 1]> label "u"
// CHECK-NEXT: cnn.concat %[[Q]], %[[U]] label "v"
func.func @in_turn(%x: tensor<1x4x3x2xi16>) {
  %a = cnn.pool "max" %x window <kernel = [1, 1]> label "a" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  %b = cnn.pool "max" %x window <kernel = [1, 1]> label "b" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  %d = cnn.add %b residual %x : tensor<1x4x3x2xi16> then <factors = "f"> label "d" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  %c = cnn.concat %a, %b, %d label "c" : (tensor<1x4x3x2xi16>, tensor<1x4x3x2xi16>, tensor<1x4x3x2xi16>) -> tensor<1x12x3x2xi16>
  %s0 = cnn.slice %c from 0 label "s0" : tensor<1x12x3x2xi16> -> tensor<1x4x3x2xi16>
  %s1 = cnn.slice %c from 4 label "s1" : tensor<1x12x3x2xi16> -> tensor<1x4x3x2xi16>
  %s2 = cnn.slice %c from 8 label "s2" : tensor<1x12x3x2xi16> -> tensor<1x4x3x2xi16>
  %p = cnn.concat %s0, %s1, %s2 pixels 3 by 1 label "p" : (tensor<1x4x3x2xi16>, tensor<1x4x3x2xi16>, tensor<1x4x3x2xi16>) -> tensor<1x4x9x2xi16>
  %q = cnn.concat %p, %p pixels 1 by 2 label "q" : (tensor<1x4x9x2xi16>, tensor<1x4x9x2xi16>) -> tensor<1x4x9x4xi16>
  %u = cnn.pool "max" %q window <kernel = [1, 1]> label "u" : tensor<1x4x9x4xi16> -> tensor<1x4x9x4xi16>
  %v = cnn.concat %q, %u label "v" : (tensor<1x4x9x4xi16>, tensor<1x4x9x4xi16>) -> tensor<1x8x9x4xi16>
  func.return
}

// A concatenation that others read, too, stays; its operands then have two places. Slices of half an operand are copied.
// CHECK: func.func @in_turn_beside_readers
// CHECK-NEXT: %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "a"
// CHECK-NEXT: %[[B:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> label "b"
// CHECK-NEXT: %[[C:.*]] = cnn.concat %[[A]], %[[B]] label "c"
// CHECK-NEXT: cnn.pool "max" %[[C]] window <kernel = [1, 1]> label "r"
// CHECK-NEXT: %[[A2:.*]] = cnn.pool "max" %[[A]] window <kernel = [1, 1]> label "m.copy0"
// CHECK-NEXT: %[[B2:.*]] = cnn.pool "max" %[[B]] window <kernel = [1, 1]> label "m.copy1"
// CHECK-NEXT: cnn.concat %[[A2]], %[[B2]] pixels 1 by 2 label "m"
// CHECK-NEXT: %[[T0:.*]] = cnn.slice %[[C]] from 0 label "t0"
// CHECK-NEXT: %[[T1:.*]] = cnn.slice %[[C]] from 2 label "t1"
// CHECK-NEXT: %[[T2:.*]] = cnn.pool "max" %[[T0]] window <kernel = [1, 1]> label "n.copy0"
// CHECK-NEXT: %[[T3:.*]] = cnn.pool "max" %[[T1]] window <kernel = [1, 1]> label "n.copy1"
// CHECK-NEXT: cnn.concat %[[T2]], %[[T3]] pixels 2 by 1 label "n"
func.func @in_turn_beside_readers(%x: tensor<1x4x3x2xi16>) {
  %a = cnn.pool "max" %x window <kernel = [1, 1]> label "a" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  %b = cnn.pool "max" %x window <kernel = [1, 1]> label "b" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  %c = cnn.concat %a, %b label "c" : (tensor<1x4x3x2xi16>, tensor<1x4x3x2xi16>) -> tensor<1x8x3x2xi16>
  %r = cnn.pool "max" %c window <kernel = [1, 1]> label "r" : tensor<1x8x3x2xi16> -> tensor<1x8x3x2xi16>
  %s0 = cnn.slice %c from 0 label "s0" : tensor<1x8x3x2xi16> -> tensor<1x4x3x2xi16>
  %s1 = cnn.slice %c from 4 label "s1" : tensor<1x8x3x2xi16> -> tensor<1x4x3x2xi16>
  %p = cnn.concat %s0, %s1 pixels 1 by 2 label "m" : (tensor<1x4x3x2xi16>, tensor<1x4x3x2xi16>) -> tensor<1x4x3x4xi16>
  %t0 = cnn.slice %c from 0 label "t0" : tensor<1x8x3x2xi16> -> tensor<1x2x3x2xi16>
  %t1 = cnn.slice %c from 2 label "t1" : tensor<1x8x3x2xi16> -> tensor<1x2x3x2xi16>
  %q = cnn.concat %t0, %t1 pixels 2 by 1 label "n" : (tensor<1x2x3x2xi16>, tensor<1x2x3x2xi16>) -> tensor<1x2x6x2xi16>
  func.return
}

// Slices: layers read the first where it lies. The second is an operand of a concatenation, the third is read as other
// images, the fourth by the user: these are copied.
// CHECK: func.func @slices
// CHECK-NEXT: %[[A:.*]] = cnn.slice %x from 0 label "a" : tensor<2x6x3x1xi16> -> tensor<2x2x3x1xi16>
// CHECK-NEXT: %[[P:.*]] = cnn.pool "max" %[[A]] window <kernel = [1, 1]> label "p"
// CHECK-NEXT: %[[B:.*]] = cnn.slice %x from 2 label "b" : tensor<2x6x3x1xi16> -> tensor<2x4x3x1xi16>
// CHECK-NEXT: %[[C:.*]] = cnn.slice %x from 4 label "c" : tensor<2x6x3x1xi16> -> tensor<2x2x3x1xi16>
// CHECK-NEXT: %[[C2:.*]] = cnn.pool "max" %[[C]] window <kernel = [1, 1]> label "c.copy"
// CHECK-NEXT: %[[D:.*]] = cnn.slice %x from 5 label "d" : tensor<2x6x3x1xi16> -> tensor<2x1x3x1xi16>
// CHECK-NEXT: %[[D2:.*]] = cnn.pool "max" %[[D]] window <kernel = [1, 1]> label "d.copy"
// CHECK-NEXT: %[[B2:.*]] = cnn.pool "max" %[[B]] window <kernel = [1, 1]> label "e.copy1"
// CHECK-NEXT: %[[E:.*]] = cnn.concat %[[P]], %[[B2]] label "e"
// CHECK-NEXT: %[[F:.*]] = cnn.reshape %[[C2]] : tensor<2x2x3x1xi16> -> tensor<1x4x3x1xi16>
// CHECK-NEXT: cnn.pool "max" %[[F]] window <kernel = [1, 1]> label "g"
// CHECK-NEXT: func.return %[[D2]]
func.func @slices(%x: tensor<2x6x3x1xi16>) -> tensor<2x1x3x1xi16> {
  %a = cnn.slice %x from 0 label "a" : tensor<2x6x3x1xi16> -> tensor<2x2x3x1xi16>
  %p = cnn.pool "max" %a window <kernel = [1, 1]> label "p" : tensor<2x2x3x1xi16> -> tensor<2x2x3x1xi16>
  %b = cnn.slice %x from 2 label "b" : tensor<2x6x3x1xi16> -> tensor<2x4x3x1xi16>
  %c = cnn.slice %x from 4 label "c" : tensor<2x6x3x1xi16> -> tensor<2x2x3x1xi16>
  %d = cnn.slice %x from 5 label "d" : tensor<2x6x3x1xi16> -> tensor<2x1x3x1xi16>
  %e = cnn.concat %p, %b label "e" : (tensor<2x2x3x1xi16>, tensor<2x4x3x1xi16>) -> tensor<2x6x3x1xi16>
  %f = cnn.reshape %c : tensor<2x2x3x1xi16> -> tensor<1x4x3x1xi16>
  %g = cnn.pool "max" %f window <kernel = [1, 1]> label "g" : tensor<1x4x3x1xi16> -> tensor<1x4x3x1xi16>
  func.return %d : tensor<2x1x3x1xi16>
}

// Of a slice of a slice the user reads a copy, and of the slice around it none.
// CHECK: func.func @slice_of_slice
// CHECK-NEXT: %[[A:.*]] = cnn.slice %x from 0 label "a"
// CHECK-NEXT: cnn.pool "max" %[[A]] window <kernel = [1, 1]> label "p"
// CHECK-NEXT: %[[D:.*]] = cnn.slice %[[A]] from 1 label "inner"
// CHECK-NEXT: %[[D2:.*]] = cnn.pool "max" %[[D]] window <kernel = [1, 1]> label "inner.copy"
// CHECK-NEXT: func.return %[[D2]]
func.func @slice_of_slice(%x: tensor<2x6x3x1xi16>) -> tensor<2x1x3x1xi16> {
  %a = cnn.slice %x from 0 label "a" : tensor<2x6x3x1xi16> -> tensor<2x4x3x1xi16>
  %p = cnn.pool "max" %a window <kernel = [1, 1]> label "p" : tensor<2x4x3x1xi16> -> tensor<2x4x3x1xi16>
  %d = cnn.slice %a from 1 label "inner" : tensor<2x4x3x1xi16> -> tensor<2x1x3x1xi16>
  func.return %d : tensor<2x1x3x1xi16>
}

// A product with one pixel a channel does not stream past the array; one of equal shapes does. It keeps both names.
// CHECK-LABEL: @pixels
// CHECK-NEXT: cnn.pool "max" %x residual %y : tensor<1x4x1x1xi16> window <kernel = [1, 1]> then <factors = "f", multiply = true> label "m" until "relu"
// CHECK-NEXT: cnn.mul %x residual %x : tensor<1x4x3x2xi16> then <factors = "f", multiply = true> label "e"
func.func @pixels(%x: tensor<1x4x3x2xi16>, %y: tensor<1x4x1x1xi16>) {
  %0 = cnn.mul %x residual %y : tensor<1x4x1x1xi16> then <factors = "f", multiply = true> label "m" until "relu" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  %1 = cnn.mul %x residual %x : tensor<1x4x3x2xi16> then <factors = "f", multiply = true> label "e" : tensor<1x4x3x2xi16> -> tensor<1x4x3x2xi16>
  func.return
}

// So does a table.
// CHECK: func.func @table
// CHECK-NEXT: cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [-8, 1016], table = "t", shift = 2> label "s" : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi8>
func.func @table(%x: tensor<2x3x7x5xi16>) -> tensor<2x3x7x5xi8> {
  %0 = cnn.lookup %x by <clamp = [-8, 1016], table = "t", shift = 2> label "s" : tensor<2x3x7x5xi16> -> tensor<2x3x7x5xi8>
  func.return %0 : tensor<2x3x7x5xi8>
}
