//! How much E1's predictions depend on each constant of a machine: base and patched rate with one
//! constant halved or doubled, and under other assumptions.

use std::ops::{Div, Mul};

use super::published::FALLOCATE2;
use super::{ARMS, arms, further, predicted};
use crate::figures::Table;
use crate::figures::row::Row;
use crate::machine::Machine;
use crate::run::{Plan, Setup};

/// Base and patched, under the linear scan.
const PAIR: [&str; 2] = [ARMS[0], ARMS[2]];

/// What happens to a constant.
#[derive(Clone, Copy, Debug)]
enum Change {
    Half,
    Double,
}

impl Change {
    const BOTH: [Self; 2] = [Self::Half, Self::Double];

    fn name(self) -> &'static str {
        match self {
            Self::Half => "half",
            Self::Double => "double",
        }
    }

    fn apply<T: Copy + From<u8> + Mul<Output = T> + Div<Output = T>>(self, constant: &mut T) {
        let two = T::from(2);
        *constant = match self {
            Self::Half => *constant / two,
            Self::Double => *constant * two,
        };
    }
}

/// Changes one constant of a machine.
type Turn = dyn Fn(&mut Machine, Change);

/// A constant of a machine: its name, and how to change it.
struct Constant {
    name: String,
    turn: Box<Turn>,
}

fn constant(name: impl Into<String>, turn: impl Fn(&mut Machine, Change) + 'static) -> Constant {
    Constant { name: name.into(), turn: Box::new(turn) }
}

/// The constants to halve and double: those that `fallocate2` uses and that no built-in machine
/// sets to zero.
fn constants(machine: &Machine) -> Vec<Constant> {
    let levels = machine.levels.iter().enumerate().map(|(at, level)| {
        constant(level.what.as_str(), move |machine, change| change.apply(&mut machine.levels[at].move_ns))
    });
    let costs = [
        constant("across_ns", |machine, change| change.apply(&mut machine.across_ns)),
        constant("hand_over_ns", |machine, change| change.apply(&mut machine.hand_over_ns)),
        constant("hit_ps", |machine, change| change.apply(&mut machine.hit_ps)),
        constant("memory_ns", |machine, change| change.apply(&mut machine.memory_ns)),
    ];
    let sections = machine.sections.iter().enumerate().flat_map(|(at, held)| {
        [
            constant(format!("{} lines", held.name), move |machine, change| {
                change.apply(&mut machine.sections[at].lines);
            }),
            constant(format!("{} work_ns", held.name), move |machine, change| {
                change.apply(&mut machine.sections[at].work_ns);
            }),
        ]
    });
    let operation = [
        constant("operation_ns", |machine, change| change.apply(&mut machine.operation_ns)),
        constant("operation_varies_percent", |machine, change| {
            change.apply(&mut machine.operation_varies_percent);
        }),
        constant("shared_accesses", |machine, change| change.apply(&mut machine.shared_accesses)),
        constant("tick_every_ns", |machine, change| change.apply(&mut machine.tick_every_ns)),
        constant("tick_costs_ns", |machine, change| change.apply(&mut machine.tick_costs_ns)),
        constant("commit_every_ns", |machine, change| change.apply(&mut machine.commit_every_ns)),
        constant("switch_ns", |machine, change| change.apply(&mut machine.switch_ns)),
        constant("quantum_ns", |machine, change| change.apply(&mut machine.quantum_ns)),
    ];
    levels.chain(costs).chain(sections).chain(operation).collect()
}

/// An assumption other than the machine file's.
struct Assumption {
    name: &'static str,
    make: fn(Machine) -> Machine,
}

/// Other orders in which waiting CPUs get a cache line, a time for which a CPU keeps a line that
/// others want, and commits within the measured time.
const ASSUMPTIONS: [Assumption; 4] = [
    Assumption {
        name: "a fifth of the moves to the nearest",
        make: |machine| Machine { neighbours_first_percent: 20, ..machine },
    },
    Assumption {
        name: "44 % of the moves to the nearest",
        make: |machine| Machine { neighbours_first_percent: 44, ..machine },
    },
    Assumption { name: "kept for 4 ns", make: |machine| Machine { keep_ns: 4, ..machine } },
    Assumption {
        name: "a commit every 5 ms",
        make: |machine| Machine { commit_every_ns: 5_000_000, ..machine },
    },
];

/// The name of a changed machine in rows.
fn name_of(machine: &Machine, changed: &str) -> String {
    format!("{}, {changed}", machine.name)
}

fn built_in(name: &str) -> Machine {
    Machine::open(name).expect("a test reads every machine that is built in")
}

/// The machine as it is, and with each change.
fn variants(machine: &Machine) -> Vec<Machine> {
    let mut variants = vec![machine.clone()];
    for constant in constants(machine) {
        for change in Change::BOTH {
            let name = name_of(machine, &format!("{} {}", constant.name, change.name()));
            let mut changed = Machine { name, ..machine.clone() };
            (constant.turn)(&mut changed, change);
            variants.push(changed);
        }
    }
    for assumption in &ASSUMPTIONS {
        let name = name_of(machine, assumption.name);
        variants.push((assumption.make)(Machine { name, ..machine.clone() }));
    }
    variants
}

pub(super) fn plans(setup: &Setup) -> Vec<Plan> {
    let arms = &arms(setup, &PAIR);
    let of_machine = |machine: Machine| {
        let workers = setup.workers.clone().unwrap_or(vec![machine.cpus]);
        let plan = move |machine| predicted::plan_on(setup, machine, "fallocate2", (&arms[..], &workers));
        variants(&machine).into_iter().map(plan).collect::<Vec<_>>()
    };
    Machine::NAMES.into_iter().map(built_in).flat_map(of_machine).collect()
}

/// The tables of rows with changed machines. Arms that are not in [`PAIR`] have a table of their
/// own.
pub(super) fn tables(rows: &[Row]) -> Vec<Table> {
    let of_machines = Machine::NAMES.into_iter().map(|name| halved_and_doubled(rows, &built_in(name)));
    of_machines.chain([assumptions(rows)]).chain(further::table(rows, &PAIR)).collect()
}

/// Whether any row is of a changed machine, as [`plans`] makes them.
pub(super) fn has_changed_machines(rows: &[Row]) -> bool {
    let is_changed =
        |machine: &str| Machine::NAMES.iter().any(|name| machine.starts_with(&format!("{name}, ")));
    rows.iter().any(|row| row.machine.as_deref().is_some_and(is_changed))
}

/// The base rate, the patched rate and their ratio on the machine of that name.
fn rates(rows: &[Row], machine: &str) -> [String; 3] {
    let rate = |arm: &str| {
        let found = rows.iter().find(|row| row.machine.as_deref() == Some(machine) && row.policy == arm);
        found.map(|row| row.ops_per_s_per_worker)
    };
    let [base, patched] = PAIR.map(rate);
    shown(base, patched)
}

fn shown(base: Option<f64>, patched: Option<f64>) -> [String; 3] {
    let written =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |value| format!("{value:.digits$}"));
    let ratio = patched.zip(base).map(|(patched, base)| patched / base);
    [written(base, 0), written(patched, 0), written(ratio, 1)]
}

fn halved_and_doubled(rows: &[Row], machine: &Machine) -> Table {
    let heads = ["constant", "half: base", "patched", "ratio", "double: base", "patched", "ratio"];
    let title = format!(
        "fallocate2 in virtual time, {}: each constant by half and double, linear scan, operations a second and worker",
        machine.name
    );
    let mut table = Table::new(title, heads);
    let unchanged = rates(rows, &machine.name);
    table.push(std::iter::once("unchanged".to_owned()).chain(unchanged.clone()).chain(unchanged));
    for constant in constants(machine) {
        let of =
            |change: Change| rates(rows, &name_of(machine, &format!("{} {}", constant.name, change.name())));
        let [half, double] = Change::BOTH.map(of);
        table.push(std::iter::once(constant.name.clone()).chain(half).chain(double));
    }
    table.note("Halves of whole numbers are rounded down.");
    table
}

fn assumptions(rows: &[Row]) -> Table {
    let heads = Machine::NAMES
        .into_iter()
        .flat_map(|name| [format!("{name}: base"), "patched".to_owned(), "ratio".to_owned()]);
    let mut table = Table::new(
        "fallocate2 in virtual time: other assumptions, linear scan, operations a second and worker",
        std::iter::once("assumption".to_owned()).chain(heads),
    );
    let linear = FALLOCATE2.iter().filter(|published| !published.optimize_scan);
    let published = linear.flat_map(|column| shown(Some(column.all_base), Some(column.all_patched)));
    table.push(std::iter::once("published".to_owned()).chain(published));
    let mut push = |name: &str, changed: fn(&Machine, &str) -> String| {
        let cells = Machine::NAMES.into_iter().flat_map(|of| rates(rows, &changed(&built_in(of), name)));
        table.push(std::iter::once(name.to_owned()).chain(cells));
    };
    push("the machine files", |machine, _| machine.name.clone());
    for assumption in &ASSUMPTIONS {
        push(assumption.name, name_of);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::super::predicted::tests::predicted;
    use super::*;
    use crate::figures::states::beside;

    #[test]
    fn every_constant_is_halved_and_doubled() {
        let machine = built_in("kunpeng-920");
        let variants = variants(&machine);
        assert_eq!(variants.len(), 1 + 2 * (3 + 4 + 6 + 8) + ASSUMPTIONS.len());
        // Each changed machine differs in more than its name, and no two have the same name.
        for (at, variant) in variants.iter().enumerate().skip(1) {
            let unnamed = Machine { name: machine.name.clone(), ..variant.clone() };
            assert_ne!(unnamed, machine, "{}", variant.name);
            assert!(variants[..at].iter().all(|other| other.name != variant.name));
        }
        let of = |name: &str| variants.iter().find(|one| one.name == format!("kunpeng-920, {name}")).unwrap();
        assert_eq!((of("die half").levels[1].move_ns, of("shared_accesses double").shared_accesses), (37, 8));
        assert_eq!(of("md lock lines half").sections[1].lines, 0);
    }

    #[test]
    fn the_tables_have_the_rates_of_the_changed_machines() {
        let (name, other) = (Machine::NAMES[0], Machine::NAMES[1]);
        let pair = |machine: &str, base: f64| {
            [predicted(machine, PAIR[0], 4, base), predicted(machine, PAIR[1], 4, 4.0 * base)]
        };
        let rows = [
            pair(name, 100.0),
            pair(&format!("{name}, hit_ps half"), 110.0),
            pair(&format!("{name}, hit_ps double"), 90.0),
            pair(&format!("{other}, kept for 4 ns"), 50.0),
        ]
        .concat();
        let [kunpeng, amd, other] = &tables(&rows)[..] else { panic!("three tables") };
        let row = |table: &Table, name: &str| table.rows.iter().find(|row| row[0] == name).unwrap().clone();
        assert_eq!(row(kunpeng, "hit_ps"), ["hit_ps", "110", "440", "4.0", "90", "360", "4.0"]);
        assert_eq!(row(amd, "CCX")[1..], ["-"; 6]);
        assert_eq!(kunpeng.rows[0], ["unchanged", "100", "400", "4.0", "100", "400", "4.0"]);
        assert_eq!(row(other, "published")[1..], ["2667", "20049", "7.5", "3450", "52125", "15.1"]);
        assert_eq!(row(other, "the machine files")[1..4], ["100", "400", "4.0"]);
        assert_eq!(row(other, "kept for 4 ns")[1..], ["-", "-", "-", "50", "200", "4.0"]);
        assert!(has_changed_machines(&rows) && !has_changed_machines(&pair(name, 1.0)));
        // A regression: the unchanged rates stood in a note, which was lost for aged file systems.
        let aged = pair(name, 70.0).map(|row| Row { state: "mail:9".to_owned(), ..row });
        let joined = &beside(&[&rows[..], &aged].concat(), tables)[0];
        let column = joined.heads.iter().position(|head| head == "half: base; mail:9").unwrap();
        assert_eq!(joined.rows[0][column], "70");
    }
}
