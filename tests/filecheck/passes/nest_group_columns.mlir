// Two strips of two columns: each computes a column of a beyond its own. Padding is where the image ends.

// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 columns=2}' | filecheck %s
// CHECK:      %0 = nest.group "a..b@0" : tensor<1x2x9x2xi32> {
// CHECK-NEXT:   %1 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 9, w = 3, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 0]> then <> label "a@0" delay 0 keeps 5 : tensor<1x2x9x4xi16> -> tensor<1x2x9x3xi32> {
// The residual has the columns of the result alone.
// CHECK:        %2 = nest.columns %1 from 0 : tensor<1x2x9x3xi32> -> tensor<1x2x9x2xi32>
// CHECK-NEXT:   %3 = nest.layer "mac" %1 residual %2 : tensor<1x2x9x2xi32> weights @v sizes <n = 1, k = 2, c = 2, h = 9, w = 2, r = 3, s = 3> window <kernel = [3, 3], pad = [1, 1, 1, 0]> then <factors = "f"> label "b@0" until "sum@0" delay 1
// CHECK:        nest.yield %3
// CHECK:      %4 = nest.group "a..b@1" : tensor<1x2x9x2xi32> {
// CHECK-NEXT:   %5 = nest.layer "mac" %x {{.*}} pad = [1, 0, 1, 1]> then <> label "a@1" delay 0 keeps 5
// CHECK:        %6 = nest.columns %5 from 1
// CHECK-NEXT:   %7 = nest.layer "mac" %5 residual %6
// CHECK:      %8 = nest.join %0, %4 label "sum" : (tensor<1x2x9x2xi32>, tensor<1x2x9x2xi32>) -> tensor<1x2x9x4xi32>
// CHECK-NEXT: func.return %8

// Three columns and one. Both need columns of the image, too.
// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 columns=1}' | filecheck %s --check-prefix ONE
// ONE:      nest.columns %x from 0 : tensor<1x2x9x4xi16> -> tensor<1x2x9x3xi16>
// ONE-NEXT: nest.group "a..b@0" : tensor<1x2x9x1xi32> {
// ONE:      sizes <n = 1, k = 2, c = 2, h = 9, w = 2, r = 3, s = 3> {{.*}} label "a@0"
// ONE:      nest.group "a..b@1" : tensor<1x2x9x1xi32> {
// ONE:      sizes <n = 1, k = 2, c = 2, h = 9, w = 3, r = 3, s = 3> {{.*}} label "a@1"
// ONE:      nest.columns %x from 1 : tensor<1x2x9x4xi16> -> tensor<1x2x9x3xi16>
// ONE-NEXT: nest.group "a..b@3" : tensor<1x2x9x1xi32> {

// A strip of all columns is none.
// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 columns=4}' | filecheck %s --check-prefix ALL
// ALL:     nest.group "a..b" : tensor<1x2x9x4xi32> {
// ALL-NOT: nest.join

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2 columns=-1}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: nest-group: group 'a..b': strips of -1 columns: columns is 1 to 4, all of the last layer, 'b', or 0 for no strips

// Delays and rings are those of each strip.
// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2 columns=2 keeps=4,0}' 2>&1 | filecheck %s --check-prefix KEEPS
// KEEPS: group 'a..b': strip 0: layer b@0, which reads a@0: a@0 keeps 4 rows, the fewest are 5 (GROUP-3): leave out keeps for the least
func.func @main(%x: tensor<1x2x9x4xi16>) -> tensor<1x2x9x4xi32> {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <> label "a" : tensor<1x2x9x4xi16> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  %1 = nest.layer "mac" %0 residual %0 : tensor<1x2x9x4xi32> weights @v sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 3>
       window <kernel = [3, 3], pad = [1, 1, 1, 1]> then <factors = "f"> label "b" until "sum" : tensor<1x2x9x4xi32> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.for s { nest.mac } } } } } }
  }
  func.return %1 : tensor<1x2x9x4xi32>
}
