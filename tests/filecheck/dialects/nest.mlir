// RUN: cnncc opt %s | filecheck %s
// RUN: cnncc opt %s --print-op-generic | filecheck %s --check-prefix GENERIC

// Every op and every optional part once: what is printed is what was read.

func.func @main(%x: tensor<2x3x5x7xi16>, %y: tensor<2x4xi16>) {
  // A layer with everything: residual, mapping, label, until; tiles, loops in space, stages, kept loops.
  // CHECK: %0 = nest.layer "mac" %x residual %r : tensor<2x4x3x4xi16> weights @w
  // CHECK-SAME: sizes <n = 2, k = 4, c = 3, h = 3, w = 4, r = 3, s = 2> window <kernel = [3, 2], stride = [1, 2], pad = [0, 1, 0, 0], fill = -3, zero = -3>
  // CHECK-SAME: then <bias = "b", scale = "q", zero = 2, clamp = [0, 127], factors = "f">
  // CHECK-SAME: mapping "params@glb > n > k||4@rows > h > w > c':2 > weight@rf*2 > {c'' > r > s}"
  // CHECK-SAME: label "conv1" until "add1" attributes {seen} : tensor<2x3x5x7xi16> -> tensor<2x4x3x4xi16> {
  // CHECK-NEXT: nest.stage ifmap in glb buffers 1
  // CHECK-NEXT: nest.stage params in glb buffers 2
  // CHECK-NEXT: nest.for n {
  // CHECK-NEXT: nest.for k step 3 {
  // CHECK-NEXT: nest.par k on rows {
  // CHECK-NEXT: nest.par w on cols {
  // CHECK-NEXT: nest.for h {
  // CHECK-NEXT: nest.stage weight in rf buffers 2
  // CHECK-NEXT: nest.for c step 2 keep {
  // CHECK-NEXT: nest.for s keep {
  // CHECK-NEXT: nest.for r keep {
  // CHECK-NEXT: nest.for c keep {
  // CHECK-NEXT: nest.mac
  // GENERIC: mapping = #nest.mapping<"params@glb > n > k||@rows > h > w > c':2 > weight@rf*2 > {c'' > r > s}">
  // GENERIC: "nest.par"() <{loop = #nest.loop<dim = "w", on = "cols">}> ({
  // GENERIC: "nest.stage"() <{fetch = #nest.fetch<operand = "weight", memory = "rf", depth = 0, buffers = 2>}> : () -> ()
  // GENERIC: "nest.for"() <{loop = #nest.loop<dim = "c", step = 2, keep = true>}> ({
  %r = "test.op"() : () -> tensor<2x4x3x4xi16>
  %0 = nest.layer "mac" %x residual %r : tensor<2x4x3x4xi16> weights @w
       sizes <n = 2, k = 4, c = 3, h = 3, w = 4, r = 3, s = 2>
       window <kernel = [3, 2], stride = [1, 2], pad = [0, 1, 0, 0], fill = -3, zero = -3>
       then <bias = "b", scale = "q", zero = 2, clamp = [0, 127], factors = "f">
       mapping <loops = [{dim = "n"}, {dim = "k", on = "rows"}, {dim = "h"}, {dim = "w"}, {dim = "c", step = 2},
                         {dim = "c", keep = true}, {dim = "r", keep = true}, {dim = "s", keep = true}],
                stages = [{operand = "params", memory = "glb", depth = 0},
                          {operand = "weight", memory = "rf", depth = 5, buffers = 2}]>
       label "conv1" until "add1" attributes {seen} : tensor<2x3x5x7xi16> -> tensor<2x4x3x4xi16> {
    nest.stage ifmap in glb
    nest.stage params in glb buffers 2
    nest.for n { nest.for k step 3 { nest.par k step 1 on rows { nest.par w on cols { nest.for h {
      nest.stage weight in rf buffers 2
      nest.for c step 2 keep { nest.for s keep { nest.for r keep { nest.for c keep { nest.mac } } } } } } } } }
  }

  // A mapping is read in the notation, too, also with the book's signs; a loop with fewer PEs than iterations is folded.
  // CHECK: mapping "params@glb > n > k':2 > [k''||2@rows h||3@cols] > w > c > weight@rf*2 > {r > s}" label "conv2"
  %1 = nest.layer "mac" %x weights @w sizes <n = 2, k = 4, c = 3, h = 3, w = 4, r = 3, s = 2>
       window <kernel = [3, 2], stride = [1, 2], pad = [0, 1, 0, 0]> then <bias = "b">
       mapping "params@glb ▷ n ▷ k∥2@rows h∥@cols ▷ w ▷ c ▷ weight@rf*2 ▷ |r ▷ s|" label "conv2"
       : tensor<2x3x5x7xi16> -> tensor<2x4x3x4xi32> { nest.for n { nest.for k { nest.for h { nest.for w { nest.for c {
    nest.for r { nest.for s { nest.mac } } } } } } } }

  // A pool has as many groups as channels and no weights; an empty mapping of dims is a single mac.
  // CHECK: nest.layer "max" %x sizes <n = 2, k = 3, c = 1, h = 1, w = 1, r = 5, s = 7> window <kernel = [5, 7], group = 3> then <>
  %2 = nest.layer "max" %x sizes <n = 2, k = 3, c = 1, h = 1, w = 1, r = 5, s = 7>
       window <kernel = [5, 7], group = 3> then <> : tensor<2x3x5x7xi16> -> tensor<2x3x1x1xi16> {
    nest.for n { nest.for k { nest.for r { nest.for s { nest.mac } } } }
  }

  // Two-dimensional tensors count as images of one pixel.
  // CHECK: nest.layer "copy" %y residual %y : tensor<2x4xi16> sizes <n = 2, k = 4, c = 1, h = 1, w = 1, r = 1, s = 1>
  %3 = nest.layer "copy" %y residual %y : tensor<2x4xi16> sizes <n = 2, k = 4, c = 1, h = 1, w = 1, r = 1, s = 1>
       window <kernel = [1, 1], group = 4> then <factors = "f"> : tensor<2x4xi16> -> tensor<2x4xi16> {
    nest.for n { nest.for k { nest.mac } }
  }

  // A group: a ring of three rows between its layers, which run in stripes of two rows and of one.
  // CHECK: nest.group "a..b" : tensor<1x3x4x4xi32> {
  // CHECK: label "a" delay 0 keeps 3 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
  // CHECK: label "b" delay 0 : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
  // CHECK: nest.yield %{{.*}} : tensor<1x3x4x4xi32>
  // GENERIC: delay = 0 : i64, keeps = 3 : i64
  %z = "test.op"() : () -> tensor<1x2x8x4xi16>
  %4 = nest.group "a..b" : tensor<1x3x4x4xi32> {
    %5 = nest.layer "mac" %z weights @w sizes <n = 1, k = 2, c = 2, h = 8, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" delay 0 keeps 3
         : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi32> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } } }
    }
    %6 = nest.layer "mac" %5 weights @v sizes <n = 1, k = 3, c = 2, h = 4, w = 4, r = 3, s = 1>
         window <kernel = [3, 1], stride = [2, 1], pad = [1, 0, 1, 0]> then <> label "b" delay 0
         : tensor<1x2x8x4xi32> -> tensor<1x3x4x4xi32> {
      nest.for h { nest.for k { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
    }
    nest.yield %6 : tensor<1x3x4x4xi32>
  }

  // Rows of a value in DRAM come into a ring of the group. First stripes of one row.
  // CHECK: nest.load "b.ifmap" %{{.*}} rows 2 delay 0 keeps 4 first 1 : tensor<1x2x8x4xi16>
  // CHECK: label "b" delay 1 first 1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
  // GENERIC: "nest.load"(%{{.*}}) <{label = "b.ifmap", rows = 2 : i64, delay = 0 : i64, keeps = 4 : i64, first = 1 : i64}>
  %7 = nest.group "b" : tensor<1x2x8x4xi16> {
    %8 = nest.load "b.ifmap" %z rows 2 delay 0 keeps 4 first 1 : tensor<1x2x8x4xi16>
    %9 = nest.layer "max" %8 sizes <n = 1, k = 2, c = 1, h = 8, w = 4, r = 1, s = 1>
         window <kernel = [1, 1], group = 2> then <> label "b" delay 1 first 1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x4xi16> {
      nest.for h step 2 { nest.for h { nest.for k { nest.for w { nest.mac } } } }
    }
    nest.yield %9 : tensor<1x2x8x4xi16>
  }

  // Some columns of a value, and strips side by side.
  // CHECK: nest.columns %{{.*}} from 1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x3xi16>
  // CHECK: nest.columns %{{.*}} from 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x1xi16>
  // CHECK: nest.join %{{.*}}, %{{.*}} label "z" : (tensor<1x2x8x1xi16>, tensor<1x2x8x3xi16>) -> tensor<1x2x8x4xi16>
  // GENERIC: "nest.columns"(%{{.*}}) <{first = 1 : i64}> : (tensor<1x2x8x4xi16>) -> tensor<1x2x8x3xi16>
  %10 = nest.columns %z from 1 : tensor<1x2x8x4xi16> -> tensor<1x2x8x3xi16>
  %11 = nest.columns %z from 0 : tensor<1x2x8x4xi16> -> tensor<1x2x8x1xi16>
  %12 = nest.join %11, %10 label "z" : (tensor<1x2x8x1xi16>, tensor<1x2x8x3xi16>) -> tensor<1x2x8x4xi16>

  // Strips that are alike: columns 0 and 1, 1 and 2, 2 and 3.
  // CHECK: nest.columns %{{.*}} from 0 every 1 : tensor<1x2x8x4xi16> -> tensor<3x2x8x2xi16>
  // CHECK: nest.join %{{.*}}, %{{.*}} : (tensor<3x2x8x2xi16>, tensor<1x2x8x1xi16>) -> tensor<1x2x8x7xi16>
  %13 = nest.columns %z from 0 every 1 : tensor<1x2x8x4xi16> -> tensor<3x2x8x2xi16>
  %14 = nest.join %13, %11 : (tensor<3x2x8x2xi16>, tensor<1x2x8x1xi16>) -> tensor<1x2x8x7xi16>
  func.return
}
