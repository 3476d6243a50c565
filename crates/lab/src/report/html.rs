//! One self-contained HTML page: environment, tables, plots, used space over time, allocation maps.
//! It has no scripts and no external references.

use blockyard_inspect::units;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::Run;
use crate::figures::plot::{Series, bar_chart, line_chart};
use crate::figures::row::Row;
use crate::figures::table::{is_published, is_published_row};
use crate::figures::{Table, summary};
use crate::run::NamedMap;

/// The style sheet: light or dark, as the reader's system is set. Published figures are in italics
/// and fainter than ours.
const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#222;--faint:#5a5a5a;--line:#ddd;--strong:#888;--paper:#fff;--code:#f3f3f3;--free:#f0f0f0}\
@media(prefers-color-scheme:dark){:root{--ink:#ddd;--faint:#a0a0a0;--line:#3a3a3a;--strong:#777;--paper:#161616;--code:#262626;--free:#2a2a2a}}\
body{font:15px/1.5 system-ui,sans-serif;max-width:80em;margin:2em auto;padding:0 1em;color:var(--ink);background:var(--paper)}\
h2{margin-top:2em;border-bottom:1px solid var(--line)}\
table{border-collapse:collapse;margin:.5em 0}\
th,td{padding:.2em .5em;border-bottom:1px solid var(--line);text-align:right;vertical-align:bottom;white-space:nowrap}\
thead th{white-space:normal;border-bottom:2px solid var(--strong)}th:first-child,td:first-child{text-align:left}\
.published{color:var(--faint);font-style:italic}\
svg{max-width:100%;height:auto}svg text{fill:var(--ink)}svg .paper{fill:var(--paper)}svg .free{fill:var(--free)}\
figure{margin:1em 0}figcaption{font-weight:600}.bars{display:flex;flex-wrap:wrap;gap:0 2em}\
code{background:var(--code);padding:.1em .3em;overflow-wrap:anywhere}.scroll{overflow-x:auto}.note{color:var(--faint);max-width:60em}";

/// The page of a run.
#[must_use]
pub(super) fn page(run: &Run, tables: &[Table]) -> String {
    let workloads = summary::by_workload(run.rows_by_workload());
    let names: Vec<&str> = workloads.iter().map(|(name, _)| name.as_str()).collect();
    let what = match names.is_empty() {
        false => names.join("; "),
        true if !run.rows.is_empty() => "e1 on changed machines".to_owned(),
        true if !run.clusters.is_empty() => "cluster sizes".to_owned(),
        true if !run.passes.is_empty() => "e2fsck by pass".to_owned(),
        true => "copies of a tree".to_owned(),
    };
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
                (contents(run, tables, &workloads))
                h2 id="run" { "Run" }
                ul { @for (name, value) in run.environment.lines() { li { (name) ": " code { (value) } } } }
                h2 id="tables" { "Tables" }
                @for table in tables { (table_markup(table)) }
                @for chart in run.charts() { figure { (PreEscaped(chart.svg())) } }
                @for (name, rows) in &workloads { (plots(name, rows)) }
                @if !run.timelines.is_empty() {
                    h2 id="time" { "Used space over time" }
                    p class="note" { "Each row is a group, or several; time runs to the right. Pale is free; the darker, the fuller." }
                }
                @for timeline in &run.timelines { figure { (PreEscaped(timeline.svg())) } }
                @if !run.maps.is_empty() {
                    h2 id="maps" { "Allocation maps" }
                    p class="note" {
                        "Groups run down, then to the right. Stretches without files are left out; a line names their groups."
                    }
                }
                div class="bars" { @for named in &run.maps { (map_markup(named)) } }
            }
        }
    }
    .into_string()
}

/// The table of contents of the page, as links.
fn contents(run: &Run, tables: &[Table], workloads: &[(String, Vec<&Row>)]) -> Markup {
    let entry = |id: &str, name: &str| html! { li { a href=(format!("#{id}")) { (name) } } };
    html! {
        nav {
            ul {
                (entry("run", "Run"))
                li {
                    a href="#tables" { "Tables" }
                    ul { @for table in tables { (entry(&slug(&table.title), &table.title)) } }
                }
                @for (name, _) in workloads { (entry(&slug(name), name)) }
                @if !run.timelines.is_empty() { (entry("time", "Used space over time")) }
                @if !run.maps.is_empty() {
                    li {
                        a href="#maps" { "Allocation maps" }
                        ul { @for named in &run.maps { (entry(&slug(&named.title), &named.title)) } }
                    }
                }
            }
        }
    }
}

/// A title as an anchor in the page.
fn slug(title: &str) -> String {
    format!("x-{}", super::file_name(title))
}

/// The label of a chart, with its unit, and the function that takes the chart's figure from a row.
type Drawn = (&'static str, fn(&Row) -> f64);

/// The charts that every workload gets.
const CHARTS: [Drawn; 4] = [
    ("operations a second in all", |row| row.ops_per_s),
    ("99 % of operations took at most (microseconds)", |row| row.lat_us_p99),
    ("extents a file", |row| row.extents_per_file),
    ("shared-lock acquisitions an operation", |row| row.lock_acquisitions.unwrap_or(f64::NAN)),
];

/// The charts of one workload: lines over the numbers of workers, or bars if there is only one
/// number of workers.
fn plots(workload: &str, rows: &[&Row]) -> Markup {
    let is_one = rows.iter().all(|row| row.workers == rows[0].workers);
    let title = |label: &str| format!("{workload}: {label}");
    html! {
        h2 id=(slug(workload)) {
            (workload) @if is_one { ", " (units::counted(rows[0].workers.into(), "worker")) }
        }
        @if let Some(table) = summary::compared(workload, rows) { (table_markup(&table)) }
        @if is_one {
            div class="bars" {
                @for (label, value) in CHARTS {
                    figure { (PreEscaped(bar_chart(&title(label), label, &bars(rows, value)))) }
                }
            }
        } @else {
            @for (label, value) in CHARTS {
                figure { (PreEscaped(line_chart(&title(label), "workers", label, &series(rows, value)))) }
            }
        }
    }
}

fn bars(rows: &[&Row], value: fn(&Row) -> f64) -> Vec<(String, f64)> {
    let medians = summary::policies(rows).into_iter().filter_map(|policy| {
        let spread = summary::median(rows, policy, None, value)?;
        Some((policy.to_owned(), spread.median))
    });
    medians.collect()
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
    html! { figure class="map" id=(slug(&named.title)) { figcaption { (named.title) } (PreEscaped(named.svg())) } }
}

fn table_markup(table: &Table) -> Markup {
    let filled = table.filled_columns();
    html! {
        h3 id=(slug(&table.title)) { (table.title) }
        div class="scroll" {
            table {
                thead { tr { @for &column in &filled {
                    @let head = &table.heads[column];
                    th class=[is_published(head).then_some("published")] { (head) }
                } } }
                tbody {
                    @for row in &table.rows {
                        @let row_is_published = row.first().is_some_and(|name| is_published_row(name));
                        tr {
                            @for &column in &filled {
                                @let (head, cell) = (&table.heads[column], &row[column]);
                                td class=[(row_is_published || is_published(head)).then_some("published")] { (cell) }
                            }
                        }
                    }
                }
            }
        }
        @for note in &table.notes { p class="note" { (note) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::row::Interleave;
    use crate::figures::summary::tests::row;
    use crate::figures::waits::tests::with_waits;
    use crate::folder::Environment;

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
        assert!(page.contains("linux-6.16&lt;") && page.contains("<polyline") && page.contains("1.000 M"));
        let one = Run { rows: vec![row("yard", 2, 1e6), row("linux-6.18", 2, 2e6)], ..run };
        let bars = super::page(&one, &one.tables());
        assert!(bars.contains("fallocate2, 2 workers") && !bars.contains("<polyline"));
        assert_eq!(bars.matches("<svg").count(), CHARTS.len());
        assert_eq!(page.matches("href=").count(), page.matches("href=\"#").count(), "links stay in the page");
        for outside in ["src=", "<script", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn charts_draw_the_figure_that_they_name() {
        let rows = [
            row("yard", 1, 1e6),
            row("yard", 2, 3e6),
            Row {
                lat_us_p99: 4.0,
                extents_per_file: 6.0,
                lock_acquisitions: Some(8.0),
                ..row("yard", 2, 5e6)
            },
        ];
        let all: Vec<&Row> = rows.iter().collect();
        let points = CHARTS.map(|(_, value)| series(&all, value)[0].points.clone());
        assert_eq!(
            points,
            [
                [(1.0, 1e6), (2.0, 4e6)],
                [(1.0, 2.0), (2.0, 3.0)],
                [(1.0, 1.5), (2.0, 3.75)],
                [(1.0, 2.0), (2.0, 5.0)],
            ]
        );
        let two = [&rows[1], &rows[2]];
        assert_eq!(CHARTS.map(|(_, value)| bars(&two, value)[0].1), [4e6, 3.0, 3.75, 5.0]);
    }

    /// Regressions: for each machine of e1, the page showed the table "where time goes" twice. With
    /// --sensitivity, each of a hundred machines had tables and plots of its own.
    #[test]
    fn what_an_experiment_shows_is_not_shown_again() {
        let on = |machine: &str, workers| {
            let machine = Some(machine.to_owned());
            let row = row("linux-6.16:scan=linear", workers, 1e6);
            with_waits(Row { interleave: Interleave::Virtual, machine, ..row }, &["md lock"])
        };
        let mut environment = Environment::of_this_machine("blockyard lab run e1".into(), "memory".into());
        environment.experiment = Some("e1".to_owned());
        let run = Run { rows: vec![on("kunpeng-920", 2), on("kunpeng-920", 80)], ..Run::new(environment) };
        let tables = run.tables();
        let time: Vec<&Table> =
            tables.iter().filter(|table| table.title.contains("where time goes")).collect();
        assert_eq!(time.len(), 1);
        assert_eq!(time[0].rows.len(), 1, "of all CPUs");
        let changed = vec![on("kunpeng-920", 80), on("kunpeng-920, hit_ps half", 80)];
        let changed = Run { rows: changed, ..run };
        assert_eq!(changed.tables().len(), 3);
        let page = super::page(&changed, &changed.tables());
        assert!(page.contains("hit_ps") && !page.contains("<svg"));
    }

    /// A run with rows of every kind: its tables, its CSV and JSON lines, and its folder leave
    /// nothing out.
    #[test]
    fn every_kind_of_rows_is_reported() {
        let pass = crate::e4::PassRow {
            workload: "e4".into(),
            policy: "yard".into(),
            state: crate::figures::states::FRESH.to_owned(),
            kind: "ext4".into(),
            seed: 1,
            scale: 0.5,
            passes: vec![crate::e4::Pass::default(); 5],
            total: crate::e4::Pass::default(),
            vitals: Vec::new(),
            disk: Vec::new(),
            our_checker: Vec::new(),
            directories: crate::e4::DirectoryBlocks::default(),
        };
        let environment = Environment::of_this_machine("blockyard lab run".into(), "memory 1G".into());
        let run = Run {
            rows: vec![row("yard", 1, 1e6)],
            copies: vec![crate::copy::table::tests::row(1, None)],
            clusters: crate::e3::table::tests::rows(None, ""),
            passes: vec![pass],
            ..Run::new(environment)
        };
        let titles: Vec<String> = run.tables().into_iter().map(|table| table.title).collect();
        let begins = [
            "copy: ",
            "copy: what flash",
            "copy: files read",
            "E3, bigalloc",
            "E4, e2fsck",
            "fallocate2: operations",
        ];
        assert!(titles.iter().zip(begins).all(|(title, begin)| title.starts_with(begin)), "{titles:?}");
        assert_eq!(titles.len(), 8);
        // Each kind of rows begins with a header line. After it, cells and copies have one row
        // each, clusters have a row for each kind of call, and passes have six rows.
        let csv = run.csv();
        let begins: Vec<&str> = csv.lines().filter_map(|line| line.split(',').next()).collect();
        let head = "workload";
        let expected =
            [&[head, "fallocate2", head, "copy", head][..], &["e3"; 5], &[head], &["e4"; 6]].concat();
        assert_eq!(begins, expected);
        let lines = run.json_lines().unwrap();
        let kinds: Vec<String> = lines
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["workload"].to_string())
            .collect();
        let (e3, e4) = ("\"e3\"", "\"e4\"");
        let expected = ["\"fallocate2\"", "\"copy\"", e3, e3, e3, e3, e3, e4, e4, e4, e4, e4, e4];
        assert_eq!(kinds, expected);
        let folder = tempfile::tempdir().unwrap();
        run.save(folder.path()).unwrap();
        let loaded = Run::load(folder.path()).unwrap();
        assert_eq!((&loaded.rows, &loaded.copies), (&run.rows, &run.copies));
        assert_eq!((&loaded.clusters, &loaded.passes), (&run.clusters, &run.passes));
    }
}
