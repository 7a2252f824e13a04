// RUN: cnncc opt %s -p cnn-fuse-epilogue | filecheck %s

// A whole chain: bias, requantisation and two clamps, of which the narrower bounds count.
// CHECK-LABEL: @chain
// CHECK-NEXT: %[[A:.*]] = cnn.conv %x weights @c.w window <kernel = [3, 2]> then <bias = "c.b", scale = "c.q", zero = 3, clamp = [0, 90]> label "c" until "clip" : tensor<1x2x7x5xi16> -> tensor<1x3x5x4xi16>
// CHECK-NEXT: func.return %[[A]]
func.func @chain(%x: tensor<1x2x7x5xi16>) -> tensor<1x3x5x4xi16> {
  %0 = cnn.conv %x weights @c.w window <kernel = [3, 2]> label "c" : tensor<1x2x7x5xi16> -> tensor<1x3x5x4xi32>
  %1 = cnn.bias %0 @c.b label "c.bias" : tensor<1x3x5x4xi32> -> tensor<1x3x5x4xi32>
  %2 = cnn.requant %1 by <scale = "c.q", zero = 3, clamp = [-127, 127]> label "c.requant" : tensor<1x3x5x4xi32> -> tensor<1x3x5x4xi16>
  %3 = cnn.clamp %2 by <clamp = [0, 127]> label "relu" : tensor<1x3x5x4xi16> -> tensor<1x3x5x4xi16>
  %4 = cnn.clamp %3 by <clamp = [-5, 90]> label "clip" : tensor<1x3x5x4xi16> -> tensor<1x3x5x4xi16>
  func.return %4 : tensor<1x3x5x4xi16>
}

// A clamp before the residual and one after it: two ranges. The fused op stands where the add stood.
// CHECK-LABEL: @residual
// CHECK-NEXT: %[[P:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [0, 9]> label "p" until "r"
// CHECK-NEXT: %[[Q:.*]] = cnn.pool "sum" %x residual %[[P]] : tensor<1x2x7x5xi16> window <kernel = [1, 1]> then <scale = "q", clamp = [-4, 7], factors = "f", add_clamp = [0, 100]> label "q" until "s"
func.func @residual(%x: tensor<1x2x7x5xi16>) -> tensor<1x2x7x5xi16> {
  %0 = cnn.pool "sum" %x window <kernel = [1, 1]> label "q" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi32>
  %1 = cnn.pool "max" %x window <kernel = [1, 1]> label "p" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  %2 = cnn.clamp %1 by <clamp = [0, 9]> label "r" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  %3 = cnn.requant %0 by <scale = "q", clamp = [-127, 127]> : tensor<1x2x7x5xi32> -> tensor<1x2x7x5xi16>
  %4 = cnn.clamp %3 by <clamp = [-4, 7]> : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  %5 = cnn.add %4 residual %2 : tensor<1x2x7x5xi16> then <factors = "f", add_clamp = [-100, 100]> label "a" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  %6 = cnn.clamp %5 by <clamp = [0, 500]> label "s" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  func.return %6 : tensor<1x2x7x5xi16>
}

// A product with a residual, and a clamp after it.
// CHECK-LABEL: @product
// CHECK-NEXT: cnn.conv %x residual %x : tensor<1x2x7x5xi16> weights @w window <kernel = [1, 1]> then <scale = "q", clamp = [-4, 7], factors = "f", multiply = true, add_clamp = [0, 100]> label "q" until "s"
func.func @product(%x: tensor<1x2x7x5xi16>) -> tensor<1x2x7x5xi16> {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> label "q" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi32>
  %1 = cnn.requant %0 by <scale = "q", clamp = [-4, 7]> : tensor<1x2x7x5xi32> -> tensor<1x2x7x5xi16>
  %2 = cnn.mul %1 residual %x : tensor<1x2x7x5xi16> then <factors = "f", multiply = true, add_clamp = [-100, 100]> label "a" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  %3 = cnn.clamp %2 by <clamp = [0, 500]> label "s" : tensor<1x2x7x5xi16> -> tensor<1x2x7x5xi16>
  func.return %3 : tensor<1x2x7x5xi16>
}

// Scales per position: a clamp follows them, but neither goes a bias before nor a residual after them.
// CHECK-LABEL: @positions
// CHECK-NEXT: %[[A:.*]] = cnn.pool "sum" %x window <kernel = [1, 1]> then <scale = "q", per_position = true, clamp = [0, 9]> label "p" until "r"
// CHECK-NEXT: %[[B:.*]] = cnn.add %[[A]] residual %x
// CHECK-NEXT: %[[C:.*]] = cnn.conv %x weights @w window <kernel = [1, 1]> then <bias = "b"> label "c" until "c.bias"
// CHECK-NEXT: %[[D:.*]] = cnn.requant %[[C]] by <scale = "q", per_position = true>
// CHECK-NEXT: func.return %[[B]], %[[D]]
func.func @positions(%x: tensor<1x2x3x3xi16>) -> (tensor<1x2x3x3xi16>, tensor<1x2x3x3xi16>) {
  %0 = cnn.pool "sum" %x window <kernel = [1, 1]> label "p" : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi32>
  %1 = cnn.requant %0 by <scale = "q", per_position = true, clamp = [-9, 9]> : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi16>
  %2 = cnn.clamp %1 by <clamp = [0, 100]> label "r" : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %3 = cnn.add %2 residual %x : tensor<1x2x3x3xi16> then <factors = "f"> label "a" : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %4 = cnn.conv %x weights @w window <kernel = [1, 1]> label "c" : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi32>
  %5 = cnn.bias %4 @b label "c.bias" : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi32>
  %6 = cnn.requant %5 by <scale = "q", per_position = true> label "d" : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi16>
  func.return %3, %6 : tensor<1x2x3x3xi16>, tensor<1x2x3x3xi16>
}

// An add of two arguments takes the clamp after it.
// CHECK-LABEL: @add
// CHECK-NEXT: cnn.add %x residual %y : tensor<2x3xi16> then <factors = "f", add_clamp = [0, 9]> label "a" until "r"
func.func @add(%x: tensor<2x3xi16>, %y: tensor<2x3xi16>) -> tensor<2x3xi16> {
  %0 = cnn.add %x residual %y : tensor<2x3xi16> then <factors = "f", add_clamp = [-9, 9]> label "a" : tensor<2x3xi16> -> tensor<2x3xi16>
  %1 = cnn.clamp %0 by <clamp = [0, 100]> label "r" : tensor<2x3xi16> -> tensor<2x3xi16>
  func.return %1 : tensor<2x3xi16>
}

// Ranges that do not meet leave one value.
// CHECK-LABEL: @empty
// CHECK-NEXT: cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [5, 5]>
func.func @empty(%x: tensor<1x2x3x3xi16>) -> tensor<1x2x3x3xi16> {
  %0 = cnn.pool "max" %x window <kernel = [1, 1]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %1 = cnn.clamp %0 by <clamp = [0, 3]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %2 = cnn.clamp %1 by <clamp = [5, 7]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  func.return %2 : tensor<1x2x3x3xi16>
}

// A value with two readers is needed as it is; so is the residual operand of an add, which does not commute.
// CHECK-LABEL: @kept
// CHECK-NEXT: %[[A:.*]] = cnn.conv %x weights @w window <kernel = [1, 1]> then <scale = "q", clamp = [-9, 9]> label "c" until "c.requant"
// CHECK-NEXT: %[[B:.*]] = cnn.clamp %[[A]] by <clamp = [0, 9]>
// CHECK-NEXT: %[[C:.*]] = cnn.pool "max" %x window <kernel = [1, 1]>
// CHECK-NEXT: %[[D:.*]] = cnn.add %[[B]] residual %[[C]]
// CHECK-NEXT: func.return %[[A]], %[[D]]
func.func @kept(%x: tensor<1x2x3x3xi16>) -> (tensor<1x2x3x3xi16>, tensor<1x2x3x3xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> label "c" : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi32>
  %1 = cnn.requant %0 by <scale = "q", clamp = [-9, 9]> label "c.requant" : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi16>
  %2 = cnn.clamp %1 by <clamp = [0, 9]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %3 = cnn.pool "max" %x window <kernel = [1, 1]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %4 = cnn.add %2 residual %3 : tensor<1x2x3x3xi16> then <factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  func.return %1, %4 : tensor<1x2x3x3xi16>, tensor<1x2x3x3xi16>
}

// Not in the order of an epilogue: a second requantisation, a bias after a clamp, a second residual.
// CHECK-LABEL: @order
// CHECK: cnn.conv %x weights @w window <kernel = [1, 1]> then <scale = "q", clamp = [-9, 9]>
// CHECK-NEXT: cnn.requant %{{.*}} by <scale = "q">
// CHECK: cnn.conv %x weights @w window <kernel = [1, 1]> then <clamp = [0, 9]>
// CHECK-NEXT: cnn.bias
// CHECK: cnn.pool "max" %x residual %x : tensor<1x2x3x3xi16> window <kernel = [1, 1]> then <factors = "f">
// CHECK-NEXT: cnn.add
func.func @order(%x: tensor<1x2x3x3xi16>) -> (tensor<1x2x3x3xi16>, tensor<1x2x3x3xi32>, tensor<1x2x3x3xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi32>
  %1 = cnn.requant %0 by <scale = "q", clamp = [-9, 9]> : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi16>
  %2 = cnn.requant %1 by <scale = "q"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %3 = cnn.conv %x weights @w window <kernel = [1, 1]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi32>
  %4 = cnn.clamp %3 by <clamp = [0, 9]> : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi32>
  %5 = cnn.bias %4 @b : tensor<1x2x3x3xi32> -> tensor<1x2x3x3xi32>
  %6 = cnn.pool "max" %x window <kernel = [1, 1]> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %7 = cnn.add %6 residual %x : tensor<1x2x3x3xi16> then <factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  %8 = cnn.add %7 residual %x : tensor<1x2x3x3xi16> then <factors = "f"> : tensor<1x2x3x3xi16> -> tensor<1x2x3x3xi16>
  func.return %2, %5, %8 : tensor<1x2x3x3xi16>, tensor<1x2x3x3xi32>, tensor<1x2x3x3xi16>
}

// A shuffle is the last step: the clamp behind it stays, and so does a shuffle behind a residual.
// CHECK: func.func @shuffle
// CHECK-NEXT: %[[C:.*]] = cnn.conv %x weights @w window <kernel = [1, 1]> then <scale = "q", clamp = [-9, 9], shuffle = 2> label "c" until "s"
// CHECK-NEXT: %[[R:.*]] = cnn.clamp %[[C]]
// CHECK-NEXT: %[[A:.*]] = cnn.add %[[R]] residual %x
// CHECK-NEXT: cnn.shuffle %[[A]] groups 2 label "t"
func.func @shuffle(%x: tensor<1x4x1x1xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> label "c" : tensor<1x4x1x1xi16> -> tensor<1x4x1x1xi32>
  %1 = cnn.requant %0 by <scale = "q", clamp = [-9, 9]> label "q" : tensor<1x4x1x1xi32> -> tensor<1x4x1x1xi16>
  %2 = cnn.shuffle %1 groups 2 label "s" : tensor<1x4x1x1xi16> -> tensor<1x4x1x1xi16>
  %3 = cnn.clamp %2 by <clamp = [0, 9]> label "r" : tensor<1x4x1x1xi16> -> tensor<1x4x1x1xi16>
  %4 = cnn.add %3 residual %x : tensor<1x4x1x1xi16> then <factors = "f"> label "a" : tensor<1x4x1x1xi16> -> tensor<1x4x1x1xi16>
  %5 = cnn.shuffle %4 groups 2 label "t" : tensor<1x4x1x1xi16> -> tensor<1x4x1x1xi16>
  func.return
}

// Three groups shuffled in two: output channels at equal distances in one are not so in the other.
// CHECK-LABEL: @groups
// CHECK-NEXT: %[[A:.*]] = cnn.conv %x weights @w window <kernel = [1, 1], group = 3> then <scale = "q"> label "c"
// CHECK-NEXT: cnn.shuffle %[[A]] groups 2 label "s"
// CHECK-NEXT: cnn.conv %x weights @w window <kernel = [1, 1], group = 3> then <shuffle = 3> label "d" until "t"
// CHECK-NEXT: cnn.conv %x weights @v window <kernel = [1, 1], group = 6> then <shuffle = 2> label "e" until "u"
// CHECK-NEXT: func.return
func.func @groups(%x: tensor<1x6x1x1xi16>) {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1], group = 3> label "c" : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi32>
  %1 = cnn.requant %0 by <scale = "q"> label "q" : tensor<1x6x1x1xi32> -> tensor<1x6x1x1xi16>
  %2 = cnn.shuffle %1 groups 2 label "s" : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  %3 = cnn.conv %x weights @w window <kernel = [1, 1], group = 3> label "d" : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  %4 = cnn.shuffle %3 groups 3 label "t" : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  %5 = cnn.conv %x weights @v window <kernel = [1, 1], group = 6> label "e" : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  %6 = cnn.shuffle %5 groups 2 label "u" : tensor<1x6x1x1xi16> -> tensor<1x6x1x1xi16>
  func.return
}

// A table follows the clamps that begin with its least integer or below it, whatever the greatest is. A residual and a
// shuffle follow the table.
// CHECK-LABEL: @table
// CHECK-NEXT: %[[A:.*]] = cnn.conv %x weights @w window <kernel = [1, 1]> then <bias = "b", scale = "q", clamp = [-9, 90], table = "t", shift = 3> label "c" until "t"
// CHECK-NEXT: %[[B:.*]] = cnn.pool "max" %x residual %[[A]] : tensor<1x4x3x3xi16> window <kernel = [1, 1]> then <clamp = [-8, 247], factors = "f", add_clamp = [-5, 5], table = "u"> label "p" until "a"
// CHECK-NEXT: %[[C:.*]] = cnn.pool "max" %[[B]] window <kernel = [1, 1]> then <clamp = [-8, 247], shuffle = 2, table = "u"> label "r" until "s"
func.func @table(%x: tensor<1x4x3x3xi16>) -> tensor<1x4x3x3xi16> {
  %0 = cnn.conv %x weights @w window <kernel = [1, 1]> label "c" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi32>
  %1 = cnn.bias %0 @b : tensor<1x4x3x3xi32> -> tensor<1x4x3x3xi32>
  %2 = cnn.requant %1 by <scale = "q", clamp = [-900, 90]> : tensor<1x4x3x3xi32> -> tensor<1x4x3x3xi16>
  %3 = cnn.lookup %2 by <clamp = [-9, 900], table = "t", shift = 3> label "t" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %4 = cnn.pool "max" %x window <kernel = [1, 1]> label "p" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %5 = cnn.lookup %4 by <clamp = [-8, 247], table = "u"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %6 = cnn.add %5 residual %3 : tensor<1x4x3x3xi16> then <factors = "f", add_clamp = [-5, 5]> label "a" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %7 = cnn.pool "max" %6 window <kernel = [1, 1]> label "r" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %8 = cnn.lookup %7 by <clamp = [-8, 247], table = "u"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %9 = cnn.shuffle %8 groups 2 label "s" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  func.return %9 : tensor<1x4x3x3xi16>
}

// A Relu before a table that begins below 0 stays a clamp before it: the entries would stand for other integers. So
// does what comes after a table, or before the table of a residual.
// CHECK-LABEL: @order_of_table
// CHECK-NEXT: %[[A:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [0, 90]> label "p" until "relu"
// CHECK-NEXT: %[[B:.*]] = cnn.lookup %[[A]] by <clamp = [-9, 90], table = "t">
// CHECK-NEXT: cnn.clamp %[[B]]
// CHECK-NEXT: %[[C:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [-9, 90], table = "t"> label "q"
// CHECK-NEXT: %[[D:.*]] = cnn.clamp %[[C]] by <clamp = [0, 5]>
// CHECK-NEXT: cnn.lookup %[[D]] by
// CHECK-NEXT: %[[E:.*]] = cnn.pool "max" %x residual %x : tensor<1x4x3x3xi16> window <kernel = [1, 1]> then <factors = "f"> label "r" until "a"
// CHECK-NEXT: cnn.lookup %[[E]] by <clamp = [-9, 90], table = "t">
// CHECK-NEXT: %[[F:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [-9, 90], table = "t"> label "s"
// CHECK-NEXT: cnn.lookup %[[F]] by <clamp = [-9, 90], table = "u">
// CHECK-NEXT: %[[G:.*]] = cnn.pool "max" %x window <kernel = [1, 1]> then <clamp = [-9, 90], table = "t"> label "v"
// CHECK-NEXT: cnn.requant %[[G]] by <scale = "q">
// CHECK-NEXT: func.return
func.func @order_of_table(%x: tensor<1x4x3x3xi16>) {
  %0 = cnn.pool "max" %x window <kernel = [1, 1]> label "p" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %1 = cnn.clamp %0 by <clamp = [0, 100]> label "relu" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %2 = cnn.clamp %1 by <clamp = [-20, 90]> label "relu" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %3 = cnn.lookup %2 by <clamp = [-9, 90], table = "t"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %4 = cnn.clamp %3 by <clamp = [0, 5]> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %5 = cnn.pool "max" %x window <kernel = [1, 1]> label "q" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %6 = cnn.lookup %5 by <clamp = [-9, 90], table = "t"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %7 = cnn.clamp %6 by <clamp = [0, 5]> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %8 = cnn.lookup %7 by <clamp = [-9, 90], table = "t"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %9 = cnn.pool "max" %x window <kernel = [1, 1]> label "r" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %10 = cnn.add %9 residual %x : tensor<1x4x3x3xi16> then <factors = "f"> label "a" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %11 = cnn.lookup %10 by <clamp = [-9, 90], table = "t"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %12 = cnn.pool "max" %x window <kernel = [1, 1]> label "s" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %13 = cnn.lookup %12 by <clamp = [-9, 90], table = "t"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %14 = cnn.lookup %13 by <clamp = [-9, 90], table = "u"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %15 = cnn.pool "max" %x window <kernel = [1, 1]> label "v" : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %16 = cnn.lookup %15 by <clamp = [-9, 90], table = "t"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  %17 = cnn.requant %16 by <scale = "q"> : tensor<1x4x3x3xi16> -> tensor<1x4x3x3xi16>
  func.return
}
