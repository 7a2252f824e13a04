// RUN: cnncc opt %s --split-input-file --verify-diagnostics --parsing-diagnostics | filecheck %s

// CHECK: tensor x: no memory rom or no role value
array.tensor <name = "x", memory = "rom", words = 1>

// -----

// CHECK: loop k0 repeats at least once, not 0 times
array.repeat <loop = "k0", count = 0> {
}

// -----

// CHECK: axis is one of lin, k, y, x, not z
array.view <name = "w", tensor = "w.glb", steps = [{loop = "k0", axis = "z", step = 1}]>

// -----

// CHECK: a max of 2 lanes: only a mac has more than one
array.mac <op = "max", place = {}, lanes = 2>

// -----

// CHECK: psum: lane = 1, but the products of all lanes go to one psum
array.commit <view = "y", place = {}, psum = {lane = 1}>

// -----

// CHECK: a load has at most four extents
array.load <kind = "ifmap", view = "x", place = {}, start = {}, pattern = [{}, {}, {}, {}, {}]>

// -----

// CHECK: an extent is at least 1, not 0
array.commit <view = "y", place = {}, pixels = {n = 0}>

// -----

// CHECK: a place has at least one row and one column, a set too
array.commit <view = "y", place = {rows = 0}>

// -----

// CHECK: 'colour' is no field here or is given twice; fields: semaphore, count
array.signal <colour = 3>

// -----

// CHECK: kind is one of weight, ifmap, not banana
array.load <kind = "banana", view = "x", place = {}, start = {}, pattern = []>

// -----

// CHECK: op is one of mac, max, add, not min
array.mac <op = "min", place = {}>

// -----

// CHECK: source is one of psum, glb, not dram
array.commit <view = "y", place = {}, source = "dram">

// -----

// CHECK: direction is one of in, out, not up
array.dma <direction = "up", dram = "x", glb = "y", words = 1>

// -----

// CHECK: engines are dma, load, array, commit, not tea
array.sync ["load", "tea"]

// -----

// All that is wrong is said at once.
// CHECK: layer conv1: view w: there is no tensor nosuch; view w: there is no loop c9; array.load: there is no view x before it; array.mac: a condition names loop k0, which is not around it
array.layer "conv1" computes "conv1" {
  array.view <name = "w", tensor = "nosuch", steps = [{loop = "c9", axis = "lin", step = 9}]>
  array.repeat <loop = "k0", count = 2> {
    array.load <kind = "weight", view = "x", place = {}, start = {}, pattern = []>
  }
  array.mac <op = "mac", place = {}, clear = ["k0"]>
}
