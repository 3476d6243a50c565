//! Fresh and aged images next to each other: the tables of all states as columns of one table.
//!
//! Each state has tables of its own at first, so the code that makes tables ignores states. The
//! tables of the other states are then joined to those of the first state, by title and by the
//! columns that name rows. Columns with the same content are not repeated.

use super::Table;

/// The name of the state of an image that was not aged.
pub const FRESH: &str = "fresh";

/// A row measured on an image in some state.
pub trait Stated: Clone {
    /// `fresh`, or the ageing of the image.
    fn state(&self) -> &str;

    /// The same row as if it came from a fresh image.
    fn as_fresh(&self) -> Self;
}

/// [`FRESH`] as a string: the state of rows that were stored by versions without aged images.
pub(crate) fn fresh() -> String {
    FRESH.to_owned()
}

/// Whether a state is that of images that were not aged. Names do not mention this state.
pub(crate) fn is_fresh(state: &str) -> bool {
    state == FRESH
}

/// The tables of rows, with the figures of different states next to each other.
pub fn beside<R: Stated>(rows: &[R], tables: impl Fn(&[R]) -> Vec<Table>) -> Vec<Table> {
    let mut states: Vec<&str> = Vec::new();
    for row in rows {
        if !states.contains(&row.state()) {
            states.push(row.state());
        }
    }
    let of = |state: &str| {
        let part: Vec<R> = rows.iter().filter(|row| row.state() == state).map(Stated::as_fresh).collect();
        tables(&part)
    };
    let Some((first, others)) = states.split_first() else { return tables(rows) };
    let mut joined = of(first);
    for state in others {
        for table in of(state) {
            match joined.iter_mut().find(|known| known.title == table.title) {
                Some(known) => known.join(&table, state),
                None => {
                    let mut alone = table;
                    alone.title = format!("{}; {state}", alone.title);
                    joined.push(alone);
                }
            }
        }
    }
    if !others.is_empty() {
        let note = format!("where neither title nor column names a life, images are {first}.");
        joined.iter_mut().for_each(|table| table.note(note.clone()));
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone)]
    struct Measured(&'static str, &'static str, u32);

    impl Stated for Measured {
        fn state(&self) -> &str {
            self.0
        }

        fn as_fresh(&self) -> Self {
            Self(FRESH, self.1, self.2)
        }
    }

    fn tables(rows: &[Measured]) -> Vec<Table> {
        assert!(rows.iter().all(|row| row.0 == FRESH));
        let mut table = Table::new("figures", ["policy", "published", "ours"]);
        rows.iter().for_each(|row| table.push([row.1, "7", &row.2.to_string()]));
        vec![table]
    }

    #[test]
    fn states_are_columns_of_one_table() {
        let rows = [
            Measured(FRESH, "a", 1),
            Measured(FRESH, "b", 2),
            Measured("mail:9", "b", 3),
            Measured("mail:9", "c", 4),
        ];
        let joined = beside(&rows, tables);
        let [table] = &joined[..] else { panic!("one table") };
        assert_eq!(table.heads, ["policy", "published", "ours", "ours; mail:9"]);
        assert_eq!(table.rows, [["a", "7", "1", "-"], ["b", "7", "2", "3"], ["c", "-", "-", "4"]]);
        assert_eq!(table.notes.len(), 1);
        let alone = beside(&rows[..2], tables);
        assert_eq!(alone[0].heads.len(), 3);
        assert!(alone[0].notes.is_empty());
        assert_eq!(beside(&[], tables)[0].rows.len(), 0);
    }

    /// The tables of e1 have several columns with the head `virtual`.
    #[test]
    fn columns_that_share_a_head_are_joined_each_to_its_own() {
        let tables = |rows: &[Measured]| {
            let mut table = Table::new("figures", ["policy", "a: published", "ours", "b: published", "ours"]);
            rows.iter().for_each(|row| {
                let (one, two) = (row.2.to_string(), (10 * row.2).to_string());
                table.push([row.1, "7", one.as_str(), "8", two.as_str()]);
            });
            vec![table]
        };
        let rows = [Measured(FRESH, "a", 1), Measured("mail:9", "a", 2), Measured("vm:9", "a", 3)];
        let joined = &beside(&rows, tables)[0];
        let ours = "ours, ours; mail:9, ours; vm:9";
        assert_eq!(joined.heads.join(", "), format!("policy, a: published, {ours}, b: published, {ours}"));
        assert_eq!(joined.rows[0], ["a", "7", "1", "2", "3", "8", "10", "20", "30"]);
    }
}
