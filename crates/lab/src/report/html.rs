//! One self-contained HTML page: environment, plots, tables. No script, no outside reference.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use crate::row::Row;
use crate::run::NamedMap;

use super::plot::{Series, line_chart};
use super::{Run, Table, summary};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#222}\
table{border-collapse:collapse;margin:1em 0}th,td{padding:.25em .7em;border-bottom:1px solid #ddd;text-align:right}\
th:first-child,td:first-child{text-align:left}thead th{border-bottom:2px solid #888}svg{max-width:100%;height:auto}\
figure{margin:1em 0}figcaption{font-weight:600}.map svg{border:1px solid #ccc}code{background:#f3f3f3;padding:.1em .3em}.scroll{overflow-x:auto}.note{color:#555}";

/// The page of a run.
#[must_use]
pub fn page(run: &Run, tables: &[Table]) -> String {
    let workloads = summary::by_workload(&run.rows);
    let names: Vec<&str> = workloads.iter().map(|(name, _)| name.as_str()).collect();
    let what = if names.is_empty() { "copies of a tree".to_owned() } else { names.join("; ") };
    let title = format!("blockyard: {what}");
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width,initial-scale=1";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (title) }
                ul { @for (name, value) in run.environment.lines() { li { (name) ": " code { (value) } } } }
                @for table in tables { (table_markup(table)) }
                @for (name, rows) in &workloads { (plots(name, rows)) }
                @if !run.timelines.is_empty() { h2 { "Used space over time" } }
                @for timeline in &run.timelines { figure { (PreEscaped(timeline.svg())) } }
                @if !run.maps.is_empty() {
                    h2 { "Allocation maps" }
                    p class="note" {
                        "A row is a block group, a square 1/32 of it; groups go down, then right. White is free, the darker the fuller."
                    }
                }
                @for named in &run.maps { (map_markup(named)) }
            }
        }
    }
    .into_string()
}

/// Throughput, extents and locks of one workload over workers; nothing when there is only one number of workers.
fn plots(workload: &str, rows: &[&Row]) -> Markup {
    if rows.iter().all(|row| row.workers == rows[0].workers) {
        return html! {};
    }
    let charts: [summary::Column; 3] = [
        ("operations a second in all", |row| row.ops_per_s),
        ("extents a file", |row| row.extents_per_file),
        ("shared-lock acquisitions an operation", |row| row.lock_acquisitions.unwrap_or(f64::NAN)),
    ];
    html! {
        h2 { (workload) }
        @for (label, value) in charts {
            figure { (PreEscaped(line_chart(&format!("{workload}: {label}"), "workers", label, &series(rows, value)))) }
        }
    }
}

fn series(rows: &[&Row], value: fn(&Row) -> f64) -> Vec<Series> {
    let mut workers: Vec<u32> = rows.iter().map(|row| row.workers).collect();
    workers.sort_unstable();
    workers.dedup();
    summary::policies(rows)
        .into_iter()
        .map(|policy| Series {
            name: policy.to_owned(),
            points: workers
                .iter()
                .filter_map(|&count| {
                    let spread = summary::median(rows, policy, Some(count), value)?;
                    Some((f64::from(count), spread.median))
                })
                .collect(),
        })
        .collect()
}

/// A map with its title as caption.
fn map_markup(named: &NamedMap) -> Markup {
    html! { figure class="map" { figcaption { (named.title) } (PreEscaped(named.svg())) } }
}

fn table_markup(table: &Table) -> Markup {
    html! {
        h3 { (table.title) }
        div class="scroll" {
            table {
                thead { tr { @for head in &table.heads { th { (head) } } } }
                tbody { @for row in &table.rows { tr { @for cell in row { td { (cell) } } } } }
            }
        }
        @for note in &table.notes { p class="note" { (note) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Environment;
    use crate::report::summary::tests::row;

    #[test]
    fn a_run_survives_its_folder_and_its_page_refers_to_nothing_outside() {
        let rows = vec![row("yard", 1, 1e6), row("linux-6.16<", 2, 2e6)];
        let environment = Environment::of_this_machine("blockyard lab run".into(), "memory 1G".into());
        let run = Run { rows, ..Run::new(environment) };
        let folder = tempfile::tempdir().unwrap();
        run.save(folder.path()).unwrap();
        run.write_reports(folder.path()).unwrap();
        assert_eq!(Run::load(folder.path()).unwrap().rows, run.rows);
        let page = std::fs::read_to_string(folder.path().join("report.html")).unwrap();
        assert!(page.contains("linux-6.16&lt;") && page.contains("<svg") && page.contains("1.000 M"));
        for outside in ["src=", "href=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
