// Number of this workgroup in a grid folded over x and y (`Grid::Flat`). May run past the count
// asked for: the kernel compares and skips.
fn flat_workgroup(id: vec3<u32>, groups: vec3<u32>) -> u32 {
    return id.x + id.y * groups.x;
}
