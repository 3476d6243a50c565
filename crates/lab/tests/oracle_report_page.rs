//! Tests the HTML page of a report in a real browser: how the browser lays it out and paints it,
//! not only what the file contains.
//!
//! A script is added to a copy of the page. It measures every table and picture after layout,
//! paints each picture on a canvas and counts its colours. It writes the results into the document,
//! which the browser then prints.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use blockyard_lab::Interleave;
use blockyard_lab::copy::{self, CopyPlan, Tree};
use blockyard_lab::folder::Environment;
use blockyard_lab::report::Run;
use blockyard_lab::run::{ImageSource, Plan, run};
use blockyard_lab::runner::Limit;
use blockyard_lab::workload::Workload;
use serde_json::Value;

/// The script that measures the page. Text boxes are in the coordinates of their picture's
/// viewBox.
const PROBE: &str = r#"
async function paint(svg) {
    const box = svg.viewBox.baseVal, image = new Image(), canvas = document.createElement('canvas');
    canvas.width = box.width; canvas.height = box.height;
    const copy = svg.cloneNode(true);
    copy.setAttribute('width', box.width); copy.setAttribute('height', box.height);
    const text = new XMLSerializer().serializeToString(copy);
    await new Promise((done, failed) => {
        image.onload = done; image.onerror = failed;
        image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(text);
    });
    const context = canvas.getContext('2d');
    context.fillStyle = '#ffffff'; context.fillRect(0, 0, box.width, box.height);
    context.drawImage(image, 0, 0);
    const pixels = context.getImageData(0, 0, canvas.width, canvas.height).data, colours = {};
    for (let at = 0; at < pixels.length; at += 4) {
        const colour = [pixels[at], pixels[at + 1], pixels[at + 2]].join(',');
        colours[colour] = (colours[colour] || 0) + 1;
    }
    return colours;
}
async function probe() {
    const seen = { title: document.title, width: document.documentElement.scrollWidth, window: innerWidth };
    seen.tables = [...document.querySelectorAll('table')].map(table => {
        const box = table.getBoundingClientRect();
        return { rows: table.tBodies[0].rows.length, width: box.width, height: box.height, text: table.innerText };
    });
    seen.pictures = [];
    for (const svg of document.querySelectorAll('svg')) {
        const box = svg.getBoundingClientRect();
        seen.pictures.push({
            title: svg.querySelector('title').textContent,
            width: box.width, height: box.height,
            view: [svg.viewBox.baseVal.width, svg.viewBox.baseVal.height],
            texts: [...svg.querySelectorAll('text')].map(text => {
                const box = text.getBBox();
                return { text: text.textContent, x: box.x, y: box.y, width: box.width, height: box.height };
            }),
            lines: [...svg.querySelectorAll('polyline')].map(line => line.getTotalLength()),
            colours: await paint(svg),
        });
    }
    seen.fetched = performance.getEntriesByType('resource').filter(entry => !entry.name.startsWith('data:')).length;
    return seen;
}
probe().then(seen => JSON.stringify(seen), error => JSON.stringify({ error: String(error) })).then(text => {
    const out = document.createElement('script');
    out.type = 'application/json'; out.id = 'seen'; out.textContent = text.replaceAll('<', '\\u003c');
    document.body.appendChild(out);
});
"#;

/// Names under which Chromium or Chrome is installed.
const BROWSERS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Renders the page and returns the results of [`PROBE`]. A busy machine may need several tries:
/// the browser prints the page when its time budget is used up, even if the probe is not done.
fn look_at(page: &Path, browser: &str) -> Value {
    let seen = (0..3).find_map(|_| try_to_look_at(page, browser)).expect("the browser prints a probe");
    assert_eq!(seen["error"], Value::Null, "{seen}");
    seen
}

fn try_to_look_at(page: &Path, browser: &str) -> Option<Value> {
    let folder = tempfile::tempdir().unwrap();
    let html = std::fs::read_to_string(page).unwrap();
    assert!(html.contains("</body>"));
    let probed = folder.path().join("probed.html");
    std::fs::write(&probed, html.replace("</body>", &format!("<script>{PROBE}</script></body>"))).unwrap();
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
        .args(["--window-size=1200,1000", "--virtual-time-budget=20000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", probed.display()))
        .env("HOME", folder.path())
        .output()
        .unwrap();
    let dom = String::from_utf8(output.stdout).unwrap();
    let Some((_, seen)) = dom.split_once("id=\"seen\">") else {
        println!("no probe in {} bytes: {}", dom.len(), String::from_utf8_lossy(&output.stderr));
        return None;
    };
    Some(serde_json::from_str(seen.split_once("</script>").unwrap().0).unwrap())
}

fn measured() -> Run {
    let environment = Environment::of_this_machine("blockyard lab run fallocate2".into(), "memory".into());
    let mut whole = Run::new(environment);
    let plan = |interleave| Plan {
        workload: Workload::by_name("append64", 0.002).unwrap(),
        policies: vec!["linux-6.16:scan=optimized".into(), "linux-6.18:scan=optimized".into(), "yard".into()],
        others: Vec::new(),
        workers: vec![1, 2, 16],
        cpus: None,
        interleave,
        image: ImageSource::memory(16 << 30, 7),
        limit: Limit { time: None, ops_per_worker: None, fsync_end: false },
        repeat: 1,
        seed: 7,
        beside_kernel: false,
        dirty_limit: None,
        machine: None,
        aged: None,
        device: None,
        cache_bytes: None,
        requests: None,
        operations: None,
        journal: vec![false],
        rotational: false,
    };
    for interleave in [Interleave::Threads, Interleave::Overlap] {
        let outcome = run(&plan(interleave), |_, _| ()).unwrap();
        whole.rows.extend(outcome.rows);
        whole.maps.extend(outcome.maps);
    }
    let copies = CopyPlan::published(vec!["rralloc-v2".into()], Tree::synthetic(0.004, 1), 1);
    let outcome = copy::run(&copies, |_, _| ()).unwrap();
    whole.copies = outcome.rows;
    whole.maps.extend(outcome.maps);
    whole.timelines = outcome.timelines;
    whole
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn a_browser_lays_the_page_out_and_paints_it() {
    let Some(browser) = BROWSERS.into_iter().find(|name| blockyard_testkit::have_tool(name)) else {
        assert!(!blockyard_testkit::require(&BROWSERS[..1]));
        return;
    };
    let whole = measured();
    let folder = tempfile::tempdir().unwrap();
    whole.save(folder.path()).unwrap();
    whole.write_reports(folder.path()).unwrap();
    let seen = look_at(&folder.path().join("report.html"), browser);

    assert!(seen["title"].as_str().unwrap().starts_with("blockyard: append64"), "{}", seen["title"]);
    assert_eq!(seen["fetched"], 0, "the page needs nothing else");
    assert!(number(&seen["width"]) <= number(&seen["window"]), "the page does not scroll sideways");
    tables(&whole, seen["tables"].as_array().unwrap());
    let pictures = seen["pictures"].as_array().unwrap();
    assert_eq!(pictures.len(), 2 * 4 + whole.maps.len() + whole.timelines.len());
    for picture in pictures {
        assert!(
            number(&picture["width"]) > 200.0 && number(&picture["height"]) > 20.0,
            "{}",
            picture["title"]
        );
        texts_are_inside(picture);
        texts_are_apart(picture);
    }
    charts(&pictures[..8]);
    maps(&whole, pictures);
}

/// Every table is there, its rows are visible, and its figures are in the text that a reader sees.
fn tables(whole: &Run, seen: &[Value]) {
    let expected = whole.tables();
    // The workload also has a table of differences from the first policy for each interleave.
    assert_eq!(seen.len(), expected.len() + 2);
    for differences in &seen[expected.len()..] {
        let text = differences["text"].as_str().unwrap();
        assert!(
            text.contains("baseline: linux-6.16:scan=optimized") && text.contains("extents/file"),
            "{text}"
        );
    }
    for (seen, expected) in seen.iter().zip(&expected) {
        assert_eq!(seen["rows"], expected.rows.len(), "{}", expected.title);
        let lines = f64::from(u32::try_from(expected.rows.len()).unwrap());
        assert!(
            number(&seen["height"]) > 15.0 * lines && number(&seen["width"]) > 200.0,
            "{}",
            expected.title
        );
        let text = seen["text"].as_str().unwrap();
        // A column that is empty in every row is left out.
        for column in expected.filled_columns() {
            for cell in expected.rows.iter().map(|row| &row[column]).chain([&expected.heads[column]]) {
                assert!(text.contains(cell.as_str()), "{}: {cell}", expected.title);
            }
        }
    }
}

fn texts_are_inside(picture: &Value) {
    let (width, height) = (number(&picture["view"][0]), number(&picture["view"][1]));
    for text in picture["texts"].as_array().unwrap() {
        let (x, y) = (number(&text["x"]), number(&text["y"]));
        let (right, bottom) = (x + number(&text["width"]), y + number(&text["height"]));
        assert!(
            x >= 0.0 && y >= 0.0 && right <= width && bottom <= height,
            "{}: {} reaches over the edge of {width} x {height}",
            picture["title"],
            text
        );
    }
}

/// No two texts overlap by more than two units in height.
fn texts_are_apart(picture: &Value) {
    let texts = picture["texts"].as_array().unwrap();
    let sides = |text: &Value, start: &str, length: &str| {
        let start = number(&text[start]);
        (start, start + number(&text[length]))
    };
    for (index, one) in texts.iter().enumerate() {
        for other in &texts[index + 1..] {
            let overlap = |start, length| {
                let (a, b) = (sides(one, start, length), sides(other, start, length));
                a.1.min(b.1) - a.0.max(b.0)
            };
            assert!(
                overlap("x", "width") <= 0.0 || overlap("y", "height") <= 2.0,
                "{}: {one} and {other}",
                picture["title"]
            );
        }
    }
}

/// A chart has three lines of more than 200 units, the name of each policy, and pixels of each
/// policy's colour.
fn charts(pictures: &[Value]) {
    for chart in pictures {
        let names: Vec<&str> =
            chart["texts"].as_array().unwrap().iter().map(|text| text["text"].as_str().unwrap()).collect();
        for name in
            ["linux-6.16:scan=optimized", "linux-6.18:scan=optimized", "yard", "workers", "1", "2", "16"]
        {
            assert!(names.contains(&name), "{}: {name} in {names:?}", chart["title"]);
        }
        let lines = chart["lines"].as_array().unwrap();
        assert_eq!(lines.len(), 3, "{}", chart["title"]);
        assert!(lines.iter().all(|line| number(line) > 200.0), "{}", chart["title"]);
        for colour in ["0,114,178", "213,94,0", "0,158,115"] {
            let pixels = chart["colours"][colour].as_u64().unwrap_or(0);
            // The mark in the legend alone has 144 pixels. More is not demanded, because lines may
            // hide one another.
            assert!(pixels >= 100, "{}: {pixels} pixels of {colour}", chart["title"]);
        }
    }
}

/// The number of pixels in a picture's rectangles for files and metadata.
fn coloured_area(svg: &str) -> u64 {
    let rects = svg.split("<rect ").skip(1).map(|rect| rect.split('>').next().unwrap());
    let value = |rect: &str, name: &str| -> String {
        let (_, rest) = rect.split_once(&format!("{name}=\"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    rects
        .filter(|rect| ["#0072b2", "#d55e00", "#cc79a7"].contains(&value(rect, "fill").as_str()))
        .map(|rect| {
            let side = |name| value(rect, name).parse::<u64>().unwrap();
            // A colour sample in the legend has a frame, which covers half a pixel on each side.
            let frame = u64::from(rect.contains("stroke"));
            (side(" width") - frame) * (side("height") - frame)
        })
        .sum()
}

/// A map has as many coloured pixels as its SVG asks for; a timeline has colours and labels.
fn maps(whole: &Run, pictures: &[Value]) {
    for named in &whole.maps {
        let picture = pictures.iter().find(|picture| picture["title"] == named.title.as_str());
        let picture = picture.unwrap_or_else(|| panic!("{} is missing", named.title));
        // Grey pixels are paper, free space or text; all others are used space.
        let is_grey = |colour: &str| {
            let channels: Vec<u8> = colour.split(',').map(|channel| channel.parse().unwrap()).collect();
            channels.iter().all(|channel| *channel == channels[0])
        };
        let colours = picture["colours"].as_object().unwrap();
        let painted: u64 = colours
            .iter()
            .filter(|(colour, _)| !is_grey(colour))
            .map(|(_, pixels)| pixels.as_u64().unwrap())
            .sum();
        // The two counts are equal only if no two squares of the map and its legend overlap.
        assert_eq!(painted, coloured_area(&named.svg()), "{}", named.title);
        let shown = (0..named.map.groups()).filter(|&group| named.map.used_in(group) > 0).count();
        assert!(painted > u64::try_from(shown).unwrap(), "{}: {shown} groups hold something", named.title);
    }
    for timeline in &whole.timelines {
        let picture = pictures.iter().find(|picture| picture["title"] == timeline.title.as_str()).unwrap();
        assert!(picture["colours"].as_object().unwrap().len() > 4, "{}", timeline.title);
        let has = |part: &str| {
            picture["texts"]
                .as_array()
                .unwrap()
                .iter()
                .any(|text| text["text"].as_str().unwrap().contains(part))
        };
        assert!(has("copy 3: ") && has("GiB written"), "{}", timeline.title);
    }
}
