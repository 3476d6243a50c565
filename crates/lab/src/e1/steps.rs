//! The series one patch after another, in the order in which it was applied, next to what was
//! published for each step.
//!
//! Only the base is calibrated; nothing is fitted to the steps. So each step shows whether the
//! model gets the step's mechanism right, while the ratio for the whole series alone could be right
//! by chance.

use super::predicted;
use crate::figures::Table;
use crate::figures::row::Row;
use crate::machine::Machine;
use crate::run::{Plan, Setup};

/// One step, and the published operations a second of each worker after it, in this order: Kunpeng
/// linear, Kunpeng optimised, AMD linear, AMD optimised.
struct Step {
    patch: &'static str,
    turned: &'static str,
    published: [Option<f64>; 4],
}

const fn step(patch: &'static str, turned: &'static str, published: [Option<f64>; 4]) -> Step {
    Step { patch, turned, published }
}

/// The published rates are those of the whole machine with one worker on each CPU. Patches 3, 6, 7
/// and 12 to 14 change no behaviour. Patches 2, 10 and 11 have no step of their own.
const STEPS: [Step; 9] = [
    step("base", "", [Some(2667.0), Some(2643.0), Some(3450.0), Some(3209.0)]),
    step("1", "busy=skip", [Some(4821.0), Some(4784.0), Some(15_371.0), Some(6101.0)]),
    step(
        "to 4",
        "stream_goal=group-only:slot_lock=none",
        [Some(9636.0), Some(4834.0), Some(22_341.0), Some(9177.0)],
    ),
    step("to 5", "slots=hashed", [Some(19_628.0), Some(7129.0), Some(53_760.0), Some(12_716.0)]),
    step("to 8", "free_pending=atomic", [Some(20_043.0), Some(7290.0), Some(54_999.0), Some(13_497.0)]),
    step("to 9", "freed_merge=before", [None, Some(13_318.0), None, Some(20_887.0)]),
    step(
        "to 15",
        "full_groups=drop:scan_toggle=prune:order_index=by-group",
        [None, Some(15_496.0), None, Some(37_636.0)],
    ),
    step("to 16", "visit=scan", [None; 4]),
    step("to 17", "sweep=per-range", [Some(20_049.0), Some(19_342.0), Some(52_125.0), Some(50_331.0)]),
];

const SCANS: [&str; 2] = ["linear", "optimized"];

/// The arm of a step: the base with the changes of this step and of all steps before it.
fn arm(scan: &str, step: usize) -> String {
    let turned = STEPS[..=step].iter().map(|step| step.turned).filter(|turned| !turned.is_empty());
    std::iter::once(format!("linux-6.16:scan={scan}"))
        .chain(turned.map(str::to_owned))
        .collect::<Vec<_>>()
        .join(":")
}

/// The arms of all steps, under both scans.
pub(super) fn arms() -> impl Iterator<Item = String> {
    SCANS.iter().flat_map(|scan| (0..STEPS.len()).map(|step| arm(scan, step)))
}

pub(super) fn plans(setup: &Setup) -> Vec<Plan> {
    let arms: Vec<String> = arms().collect();
    let plan = |name: &str| {
        let all = Machine::open(name).map_or(1, |machine| machine.cpus);
        let workers = setup.workers.clone().unwrap_or(vec![all]);
        predicted::plan(setup, name, "fallocate2", &arms, &workers)
    };
    Machine::NAMES.into_iter().map(plan).collect()
}

pub(super) fn table(rows: &[Row]) -> Table {
    let columns = || Machine::NAMES.into_iter().flat_map(|machine| SCANS.map(|scan| (machine, scan)));
    let heads = columns().flat_map(|(machine, scan)| {
        [format!("{machine}, {scan}: published"), "virtual".to_owned(), "over".to_owned()]
    });
    let mut table = Table::new(
        "fallocate2 in virtual time, all CPUs: the series patch upon patch, operations a second and worker",
        std::iter::once("patches".to_owned()).chain(heads),
    );
    for (number, step) in STEPS.iter().enumerate() {
        let cells = columns().zip(step.published).flat_map(|((machine, scan), published)| {
            let name = arm(scan, number);
            let row = rows
                .iter()
                .filter(|row| row.workload == "fallocate2" && row.policy == name)
                .find(|row| row.machine.as_deref() == Some(machine));
            let ours = row.map(|row| row.ops_per_s_per_worker);
            let over = published.zip(ours).map(|(published, ours)| format!("{:.2}", ours / published));
            let whole = |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.0}"));
            [whole(published), whole(ours), over.unwrap_or_else(|| "-".to_owned())]
        });
        table.push(std::iter::once(step.patch.to_owned()).chain(cells));
    }
    table.note("Published figures of single patches are those of the patches' own descriptions (July 2025).");
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use blockyard_alloc::Policy;

    /// With all patches the base becomes linux-6.18.
    #[test]
    fn the_last_step_is_the_whole_series() {
        for scan in SCANS {
            let all: Vec<Policy> =
                (0..STEPS.len()).map(|step| Policy::parse(&arm(scan, step)).unwrap()).collect();
            assert_eq!(all[0], Policy::parse(&format!("linux-6.16:scan={scan}")).unwrap());
            let whole = Policy::parse(&format!("linux-6.18:scan={scan}")).unwrap();
            let last = all.last().unwrap();
            // The slot `indirect_scan` is about a change that came after the series.
            let slots = |policy: &Policy| {
                policy.slots().filter(|(slot, _)| *slot != "indirect_scan").collect::<Vec<_>>()
            };
            assert_eq!(slots(last), slots(&whole));
        }
    }
}
