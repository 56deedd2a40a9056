//! Ranks that wait for each other in a circle.

use std::collections::BTreeMap;

use super::place::Place;

/// Each rank of a circle, with the place in the circle where the rank waits. Tarjan's strongly
/// connected components, without recursion: a circle may have thousands of ranks.
pub(super) fn circles(places: &[Place<'_>]) -> Vec<(u32, usize)> {
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    for (rank, _) in places.iter().flat_map(|place| &place.here) {
        let next = numbers.len();
        numbers.entry(*rank).or_insert(next);
    }
    let ranks: Vec<u32> = {
        let mut by_number: Vec<(usize, u32)> =
            numbers.iter().map(|(rank, at)| (*at, *rank)).collect();
        by_number.sort_unstable();
        by_number.into_iter().map(|(_, rank)| rank).collect()
    };
    // Ranks first, then places.
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); ranks.len() + places.len()];
    for (at, place) in places.iter().enumerate() {
        let node = ranks.len() + at;
        for (rank, _) in &place.here {
            if let Some(out) = numbers.get(rank).and_then(|from| edges.get_mut(*from)) {
                out.push(node);
            }
        }
        let to = place.missing.iter().filter_map(|rank| numbers.get(rank).copied());
        if let Some(out) = edges.get_mut(node) {
            out.extend(to);
        }
    }
    let component = components(&edges);
    let mut found = Vec::new();
    for (number, rank) in ranks.iter().enumerate() {
        let Some(own) = component.get(number) else { continue };
        // Paths lead from the place back to the rank.
        let inside = edges.get(number).into_iter().flatten();
        let mut inside = inside.filter(|place| component.get(**place) == Some(own));
        if let Some(place) = inside.next() {
            found.push((*rank, place - ranks.len()));
        }
    }
    found
}

/// The component of each node.
fn components(edges: &[Vec<usize>]) -> Vec<usize> {
    const NONE: usize = usize::MAX;
    let count = edges.len();
    let (mut index, mut low) = (vec![NONE; count], vec![0_usize; count]);
    let (mut on_stack, mut component) = (vec![false; count], vec![NONE; count]);
    let (mut stack, mut next, mut made) = (Vec::new(), 0, 0);
    for root in 0..count {
        if index[root] != NONE {
            continue;
        }
        // A node, and the number of its edges that were followed.
        let mut path = vec![(root, 0_usize)];
        while let Some((node, followed)) = path.last_mut() {
            let node = *node;
            if *followed == 0 {
                (index[node], low[node]) = (next, next);
                next += 1;
                stack.push(node);
                on_stack[node] = true;
            }
            if let Some(&to) = edges[node].get(*followed) {
                *followed += 1;
                if index[to] == NONE {
                    path.push((to, 0));
                } else if on_stack[to] {
                    low[node] = low[node].min(index[to]);
                }
                continue;
            }
            path.pop();
            if let Some((parent, _)) = path.last() {
                low[*parent] = low[*parent].min(low[node]);
            }
            if low[node] == index[node] {
                while let Some(member) = stack.pop() {
                    on_stack[member] = false;
                    component[member] = made;
                    if member == node {
                        break;
                    }
                }
                made += 1;
            }
        }
    }
    component
}
