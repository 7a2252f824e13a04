// Two convolutions in stripes of two rows: the second needs a row below its stripe, so it runs a stripe behind.

// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2}' | filecheck %s
// CHECK:      nest.group "a..b" : tensor<1x3x9x4xi32> {
// CHECK:      label "a" delay 0 keeps 5
// CHECK-NEXT:   nest.for h step 2 {
// CHECK-NEXT:     nest.for k {
// CHECK-NEXT:       nest.for h {
// CHECK-NEXT:         nest.for w {
// CHECK:      label "b" delay 1 :
// CHECK-NEXT:   nest.for h step 2 {
// CHECK:      nest.yield
// CHECK-NOT:  delay
// CHECK:      label "pool" :

// The stripes are those of the last layer: one row of the pool takes two of what it reads. Its last stripe has one row.
// RUN: cnncc opt %s -p 'nest-group{layers="a,b,pool" rows=1}' | filecheck %s --check-prefix POOL
// POOL:      label "a" delay 0 keeps 5
// POOL-NEXT:   nest.for h step 2 {
// POOL:      label "b" delay 1 keeps 2
// POOL-NEXT:   nest.for h step 2 {
// POOL:      label "pool" delay 1 :
// POOL-NEXT:   nest.for h {
// POOL-NEXT:     nest.for k {

// A longer delay takes a larger ring.
// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 delays=0,2}' | filecheck %s --check-prefix SLACK
// SLACK: label "a" delay 0 keeps 7
// SLACK: label "b" delay 2 :

// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 keeps=9,0}' | filecheck %s --check-prefix KEEPS
// KEEPS: label "a" delay 0 keeps 9

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2 delays=0,0}' 2>&1 | filecheck %s --check-prefix LATE
// LATE: nest-group: group 'a..b': layer b, which reads a: delay 0, the least is 1 (GROUP-2): leave out delays for the least

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2 keeps=4,0}' 2>&1 | filecheck %s --check-prefix SMALL
// SMALL: group 'a..b': layer b, which reads a: a keeps 4 rows, the fewest are 5 (GROUP-3): leave out keeps for the least

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2 delays=0}' 2>&1 | filecheck %s --check-prefix NUMBERS
// NUMBERS: delays has 1 numbers for 2 layers: one for each, or leave it out

// RUN: not cnncc opt %s -p 'nest-group{layers="b,pool" rows=0}' 2>&1 | filecheck %s --check-prefix ROWS
// ROWS: stripes of 0 rows: rows is 1 to 5, all of the last layer, 'pool'

// RUN: not cnncc opt %s -p 'nest-group{layers="b,pool" rows=6}' 2>&1 | filecheck %s --check-prefix MORE
// MORE: nest-group: group 'b..pool': stripes of 6 rows: rows is 1 to 5, all of the last layer, 'pool'

// RUN: not cnncc opt %s -p 'nest-group{layers=a rows=1}' 2>&1 | filecheck %s --check-prefix ONE
// ONE: 1 layer: a group has two or more, each once

// RUN: not cnncc opt %s -p 'nest-group{layers="," rows=1}' 2>&1 | filecheck %s --check-prefix NONE
// NONE: nest-group: group '': 0 layers: a group has two or more, each once

// RUN: not cnncc opt %s -p 'nest-group{layers="a,c" rows=1}' 2>&1 | filecheck %s --check-prefix NAME
// NAME: there is no layer 'c'; layers: a, b, pool, sum

// An elementwise layer is a sum of one pixel.
// RUN: cnncc opt %s -p 'nest-group{layers="pool,sum" rows=1}' | filecheck %s --check-prefix SUM
// SUM: label "pool" delay 0 keeps 1 :
// SUM: nest.layer "add" %{{.*}} residual %{{.*}} : tensor<1x3x5x4xi32> sizes <n = 1, k = 3, c = 1, h = 5, w = 4, r = 1, s = 1> {{.*}} label "sum" delay 0 :
// SUM: nest.for h {

// RUN: not cnncc opt %s -p 'nest-group{layers="a,pool" rows=1}' 2>&1 | filecheck %s --check-prefix READ
// READ: layer 'b' stands between the group's layers 'a' and 'pool': name it, too

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2},nest-group{layers="b,pool" rows=1}' 2>&1 | filecheck %s --check-prefix TWICE
// TWICE: layer 'b' is in a group already: groups hold layers, name them all at once

// Delays in rows: a computes a row first, then two rows at a time, and b the same a row behind.
// RUN: cnncc opt %s -p 'nest-group{layers="a,b" rows=2 rowwise=true}' | filecheck %s --check-prefix ROWWISE
// ROWWISE: label "a" delay 0 keeps 4 first 1 :
// ROWWISE: label "b" delay 1 :

// A pass by hand on a layer of a group keeps its rules.
// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2},nest-interchange{loops=w,h layer=a},nest-permute{order="k,h,h,w,c,r" layer=a}' 2>&1 | filecheck %s --check-prefix HAND
// HAND: (GROUP-1)

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2},nest-assign-mapping{arch=spatial-8x8}' 2>&1 | filecheck %s --check-prefix MAPPED
// MAPPED: nest-assign-mapping: group 'a..b': its layers are mapped already: nest-group is for a dump after nest-stage

// RUN: not cnncc opt %s -p 'nest-group{layers="a,b" rows=2},nest-to-scf' 2>&1 | filecheck %s --check-prefix SCF
// SCF: groups are not lowered to standard dialects: leave out nest-group
func.func @main(%x: tensor<1x2x9x4xi16>) -> tensor<1x3x5x4xi32> {
  %0 = nest.layer "mac" %x weights @w sizes <n = 1, k = 2, c = 2, h = 9, w = 4, r = 3, s = 1>
       window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "a" : tensor<1x2x9x4xi16> -> tensor<1x2x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
  }
  %1 = nest.layer "mac" %0 weights @v sizes <n = 1, k = 3, c = 2, h = 9, w = 4, r = 3, s = 1>
       window <kernel = [3, 1], pad = [1, 0, 1, 0]> then <> label "b" : tensor<1x2x9x4xi32> -> tensor<1x3x9x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for c { nest.for r { nest.mac } } } } }
  }
  %2 = nest.layer "max" %1 sizes <n = 1, k = 3, c = 1, h = 5, w = 4, r = 2, s = 1>
       window <kernel = [2, 1], stride = [2, 1], pad = [0, 0, 1, 0], group = 3> then <> label "pool"
       : tensor<1x3x9x4xi32> -> tensor<1x3x5x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.for r { nest.mac } } } }
  }
  %3 = nest.layer "copy" %2 residual %2 : tensor<1x3x5x4xi32> sizes <n = 1, k = 3, c = 1, h = 5, w = 4, r = 1, s = 1>
       window <kernel = [1, 1], group = 3> then <factors = "f"> label "sum" : tensor<1x3x5x4xi32> -> tensor<1x3x5x4xi32> {
    nest.for k { nest.for h { nest.for w { nest.mac } } }
  }
  func.return %3 : tensor<1x3x5x4xi32>
}
