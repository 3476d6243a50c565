//! Chooses which clusters of a range of a group are taken: those at the goal, or free ones after
//! the goal. The choice does not compare runs to find the best.

use crate::buddy::Buddy;

/// After the goal, clusters are looked at one by one up to the next multiple of this.
const NEAR: u32 = 64;
/// Farther from the goal, this many free clusters in a row are preferred, if the first is at a
/// multiple of this number.
const BYTE: u32 = 8;

/// A range of a group's clusters to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) low: u32,
    /// The end of the range, exclusive.
    pub(crate) high: u32,
    /// Whether the range is a file's reservation window. If not, up to seven free clusters before
    /// the position found may be taken, too.
    pub(crate) is_window: bool,
}

/// Start and length of a run of up to `count` free clusters. The search begins at the goal, or at
/// the start of the range if there is no goal. `None` if nothing is free from this position to the
/// end of the range.
pub(crate) fn choose(buddy: &Buddy, goal: Option<u32>, range: Range, count: u32) -> Option<(u32, u32)> {
    debug_assert!(range.low < range.high && range.high <= buddy.clusters(), "{range:?}");
    let at_goal = goal.filter(|&goal| goal < range.high && buddy.is_free(goal));
    let start = match at_goal {
        Some(goal) => goal,
        None => next(buddy, goal.map_or(range.low, |goal| goal.max(range.low)), range)?,
    };
    let end = buddy.next_used(start).min(range.high);
    debug_assert!(end > start, "cluster {start} is not free");
    Some((start, (end - start).min(count)))
}

/// The first cluster to take, at or after `start`. In this order of preference:
///
/// 1. A free cluster before the next multiple of [`NEAR`].
/// 2. The first of eight aligned free clusters.
/// 3. Any free cluster.
///
/// In cases 2 and 3, unless the range is a window, the result is moved back over up to seven free
/// clusters, but not before `start`.
fn next(buddy: &Buddy, start: u32, range: Range) -> Option<u32> {
    let free = |from: u32, below: u32| buddy.next_free(from).filter(|&at| at < below);
    if start > 0
        && let Some(near) = free(start, start.next_multiple_of(NEAR).min(range.high))
    {
        return Some(near);
    }
    let found = free_byte(buddy, start, range.high).or_else(|| free(start, range.high))?;
    if range.is_window {
        return Some(found);
    }
    let before = (0..BYTE).map(|back| found - back.min(found - start)).take_while(|&at| buddy.is_free(at));
    Some(before.min().unwrap_or(found))
}

/// The first multiple of eight in `[start, high)` from which eight clusters are free.
fn free_byte(buddy: &Buddy, start: u32, high: u32) -> Option<u32> {
    let mut at = start;
    while let Some(free) = buddy.next_free(at).filter(|&free| free < high) {
        let end = buddy.next_used(free);
        let byte = free.next_multiple_of(BYTE);
        if byte + BYTE <= end && byte < high {
            return Some(byte);
        }
        at = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of 256 clusters, of which only the ranges `free` (start, end) are free.
    fn buddy(free: &[(u32, u32)]) -> Buddy {
        let mut bitmap = [0xff_u8; 32];
        for at in free.iter().flat_map(|&(from, below)| from..below) {
            bitmap[usize::try_from(at / 8).unwrap()] &= !(1 << (at % 8));
        }
        Buddy::from_used_bitmap(&bitmap, 256, 256, 9)
    }

    fn chosen(free: &[(u32, u32)], goal: Option<u32>, is_window: bool) -> Option<(u32, u32)> {
        choose(&buddy(free), goal, Range { low: 0, high: 256, is_window }, 100)
    }

    #[test]
    fn the_goal_then_what_is_near_then_eight_together_then_any() {
        assert_eq!(chosen(&[(70, 72), (80, 90)], Some(70), true), Some((70, 2)), "the goal");
        assert_eq!(chosen(&[(100, 101), (136, 150)], Some(70), true), Some((100, 1)), "before 128");
        assert_eq!(chosen(&[(130, 131), (133, 150)], Some(70), true), Some((136, 14)), "eight together");
        assert_eq!(
            chosen(&[(130, 131), (133, 150)], Some(70), false),
            Some((133, 17)),
            "and those before them"
        );
        assert_eq!(chosen(&[(130, 131), (133, 139)], Some(70), true), Some((130, 1)), "any");
        assert_eq!(chosen(&[(3, 4)], Some(70), true), None, "nothing behind the goal");
        assert_eq!(chosen(&[(3, 4), (16, 24)], None, true), Some((16, 8)), "from 0 nothing is near");
        assert_eq!(chosen(&[(64, 80)], Some(64), true), Some((64, 16)));
        assert_eq!(
            chosen(&[(66, 67), (80, 88)], Some(64), true),
            Some((80, 8)),
            "at a multiple nothing is near"
        );
    }

    #[test]
    fn the_step_back_ends_after_seven_and_at_the_start() {
        assert_eq!(chosen(&[(129, 152)], Some(128), false), Some((129, 23)));
        assert_eq!(chosen(&[(136, 152)], Some(128), false), Some((136, 16)));
        let range = Range { low: 131, high: 256, is_window: false };
        assert_eq!(choose(&buddy(&[(128, 129), (192, 210)]), Some(131), range, 4), Some((192, 4)));
    }

    #[test]
    fn a_window_ends_what_is_taken() {
        let range = Range { low: 10, high: 14, is_window: true };
        assert_eq!(choose(&buddy(&[(8, 40)]), None, range, 9), Some((10, 4)));
        assert_eq!(choose(&buddy(&[(8, 40)]), Some(12), range, 9), Some((12, 2)));
        assert_eq!(choose(&buddy(&[(14, 40)]), None, range, 9), None);
    }
}
