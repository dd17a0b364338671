//! A browser looks at the page of every suite, and at the picture that stands alone, as wide as a
//! desktop's window and as a phone's screen: `geometry.js` says what a reader could not read.

use super::{crowd, phone, schemes};
use crate::counting::blocks::{BlockContent, BlockRequest, Blocks};
use crate::html;
use crate::report::Row;
use crate::report::tests::rows;
use crate::runner::tests::outcome;
use std::fmt::Write as _;
use std::process::Command;

/// Pixels of the two screens.
const WIDTHS: [u32; 2] = [1280, 390];
/// Of a README, the part beside the picture.
const BESIDE: u32 = 32;
const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Rows of a few workloads, of which engines differ by up to two orders of magnitude.
fn various() -> Vec<Row> {
    let mut rows = rows();
    rows.retain(|r| ["insert", "update", "lookup", "gmail"].contains(&r.workload));
    for (i, row) in rows.iter_mut().enumerate() {
        // Of lookups all are as fast, so that the axis is linear.
        let by = if row.workload == "lookup" { 1.0 + i as f64 / 100.0 } else { 1.6_f64.powi(i as i32 % 11) };
        row.tx_per_s = 1485.3 * by;
        row.tx_per_s_runs = [0.96, 1.0, 1.03, 1.0, 1.1].map(|noise| 1485.3 * by * noise).to_vec();
        row.kib_per_tx = Some(46.3 / by.sqrt());
        row.flushes_per_tx = Some(4.02 / by.sqrt());
        row.blocks = row.blocks.filter(|_| row.workload == "gmail");
        row.latency_us_cdf = (0..100).map(|q| (90.0 * (1.0 + f64::from(q)) / by, f64::from(q) / 100.0)).collect();
    }
    rows
}

/// Of a device that was traced: the log's writes, a flush after each, and a checkpoint at the end.
fn traced() -> Blocks {
    let write = |at_us, offset, content| BlockRequest { at_us, write: Some((offset, 4096, content)) };
    let log = (0..300).flat_map(|i| {
        [write(i * 1234, i << 12, BlockContent::Log), BlockRequest { at_us: i * 1234 + 600, write: None }]
    });
    let database = (0..40).map(|i| write(370_000 + i * 100, (1 << 30) + (i << 16), BlockContent::Database));
    Blocks { requests: log.chain(database).collect(), ..Blocks::default() }
}

fn pages() -> Vec<(&'static str, String)> {
    let mut outcome = outcome(various(), "WAL/FULL");
    for (row, trace) in outcome.rows.iter().zip(&mut outcome.traces) {
        *trace = row.blocks.is_some().then(traced);
    }
    vec![
        ("commit", html::page(&outcome, &outcome.parameters.wear).unwrap()),
        ("threads", crowd::tests::sample_page()),
        ("schemes", schemes::tests::sample_page()),
        ("phone", phone::tests::sample_page()),
    ]
}

/// The picture of the README, and pictures of all engines and of those measured by default.
fn pictures() -> Vec<(&'static str, String)> {
    let mut usual = various();
    usual.retain(|r| ["insert", "update"].contains(&r.workload) && r.of.default);
    let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commit-cost.svg");
    vec![
        ("the README", std::fs::read_to_string(readme).unwrap()),
        ("all", html::picture(&outcome(various(), "")).unwrap()),
        ("usual", html::picture(&outcome(usual, "")).unwrap()),
    ]
}

/// What the script says of all of them, or why there is no browser.
fn looked_at(pages: &[(&str, String)], pictures: &[(&str, String)]) -> Result<Vec<String>, String> {
    let has = |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|out| out.status.success());
    let browser = BROWSERS.iter().find(has).ok_or(format!("none of {} is installed", BROWSERS.join(", ")))?;
    let mut all =
        "<!doctype html><meta charset=\"utf-8\"><style>div > svg { max-width: 100%; height: auto }</style>".to_owned();
    for width in WIDTHS {
        for (name, page) in pages {
            let page = html::escape(page);
            write!(
                all,
                "<iframe id=\"{name} at {width}\" data-width=\"{width}\" style=\"width:{width}px; height:800px; \
                 border:0\" srcdoc=\"{page}\"></iframe>"
            )
            .unwrap();
        }
        for (name, svg) in pictures {
            let beside = width - BESIDE;
            write!(all, "<div id=\"picture of {name} at {width}\" style=\"width:{beside}px\">{svg}</div>").unwrap();
        }
    }
    write!(all, "<script>{}</script>", include_str!("geometry.js")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("all.html");
    std::fs::write(&path, all).unwrap();
    let out = Command::new("timeout")
        .args([
            "120",
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", dir.path().join("profile").display()))
        .arg(format!("file://{}", path.display()))
        .output()
        .unwrap();
    let dom = String::from_utf8_lossy(&out.stdout);
    let found = dom.split_once("<pre id=\"found\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (found, _) = found.unwrap_or_else(|| panic!("{browser}: {}", String::from_utf8_lossy(&out.stderr)));
    Ok(found.lines().map(str::to_owned).collect())
}

#[test]
fn a_browser_shows_all_that_a_page_says() {
    let (pages, pictures) = (pages(), pictures());
    match looked_at(&pages, &pictures) {
        Ok(found) => {
            let all = format!("looked at {} pages and {} pictures", 2 * pages.len(), 2 * pictures.len());
            assert_eq!(found, [all], "{}", found.join("\n"));
        }
        Err(why) => eprintln!("skipped: {why}"),
    }
}

#[test]
fn a_browser_finds_unreadable_text() {
    let text = |x: u32, size: u32, text: &str| {
        format!("<text x=\"{x}\" y=\"40\" font-size=\"{size}\" text-anchor=\"middle\">{text}</text>")
    };
    let svg = format!(
        "<svg width=\"420\" height=\"60\" viewBox=\"0 0 420 60\">{}{}{}{}\
         <text x=\"50\" y=\"56\" text-anchor=\"middle\">title</text><rect x=\"10\" y=\"10\" width=\"250\" \
         height=\"9\" fill=\"var(--c0)\"/></svg>",
        text(50, 16, "10,000"),
        text(60, 16, "20,000"),
        text(200, 9, "small"),
        text(414, 16, "at the edge").replace("middle", "start"),
    );
    let mut page = html::begin("Bad", &[], ["", ""], &[]).unwrap();
    html::figure(&mut page, "Bad", "", &svg).unwrap();
    page.push_str("<p style=\"width:500px\">wide</p>");
    let page = html::end(page, &[]).unwrap();
    let Ok(found) = looked_at(&[("bad", page)], &[]) else { return eprintln!("skipped: there is no browser") };
    let found = found.join("\n");
    for complaint in [
        "bad at 390: the page has 5",
        "Bad: 10,000 lies over 20,000",
        "Bad: letters of",
        "Bad: cut: at the edge",
        "beyond the last tick across",
    ] {
        assert!(found.contains(complaint), "{complaint} is not in\n{found}");
    }
}
