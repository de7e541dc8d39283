//! `cargo xtask images`: takes the pictures in `docs/images` of what the present program writes.

use crate::onednn;
use crate::peers::model_file;
use crate::process::{self, cargo, exists, root, target_dir};
use std::path::Path;
use std::process::{Command, Stdio};

/// Browser, the Debian package of the same name.
const BROWSER: &str = "chromium";
/// Model of the picture, which the README shows as text.
const MODEL: &str = "ssd_resnet50";
/// Height of the shown part of the graph, in pixels of CSS: its last twelve layers, which contain the operators on the
/// host.
const GRAPH_HEIGHT: usize = 790;
/// Size of the picture in pixels of CSS: the graph under a title and a legend of two lines each.
const WINDOW: (usize, usize) = (600, GRAPH_HEIGHT + 150);

/// Writes `docs/images/explain.png`: the page of `byoc explain --html`, with the end of the graph.
pub fn run() -> Result<(), String> {
    if !exists(BROWSER) {
        return Err(format!(
            "expected {BROWSER} on the PATH, found none; install it with `apt-get install -y {BROWSER}`"
        ));
    }
    let library = onednn::fetch_if_possible().ok_or("expected oneDNN, which the picture shows, found none")?;
    process::run(&mut cargo(&["build", "--release", "--quiet", "--package", "byoc-cli"]))?;
    process::run(&mut cargo(&["build", "--release", "--quiet", "--package", "byoc-dnnl"]))?;
    let release = target_dir().join("release");
    let byoc = release.join("byoc");
    let page = target_dir().join("explain.html");
    let mut explain = Command::new(&byoc);
    explain.arg("explain").arg(model_file(MODEL, &byoc)?).args(["--backend", "dnnl", "--html"]).arg(&page);
    explain.arg("--plugin-dir").arg(&release).env("BYOC_DNNL_LIB", library).stdout(Stdio::null());
    process::run(&mut explain)?;

    let fail = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let text = std::fs::read_to_string(&page).map_err(|error| fail(&page, error))?;
    let text = end_of_graph(&text).ok_or_else(|| format!("{}: expected a graph, found none", page.display()))?;
    std::fs::write(&page, text).map_err(|error| fail(&page, error))?;
    photograph(&page, &root().join("docs/images/explain.png"))
}

/// Returns the page with the last [`GRAPH_HEIGHT`] pixels of its graph, which is about ten times as high.
fn end_of_graph(page: &str) -> Option<String> {
    let (before, graph) = page.split_once("<svg ")?;
    let (size, after) = graph.split_once('>')?;
    let mut numbers = size.split('"').skip(1).step_by(2).map(str::parse::<usize>);
    let (width, height) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let (shown, hidden) = (height.min(GRAPH_HEIGHT), height.saturating_sub(GRAPH_HEIGHT));
    let size = format!("width=\"{width}\" height=\"{shown}\" viewBox=\"0 {hidden} {width} {shown}\"");
    Some(format!("{before}<svg {size}>{after}"))
}

/// Takes a picture of a page, with two pixels for each of CSS.
fn photograph(page: &Path, picture: &Path) -> Result<(), String> {
    let mut browser = Command::new(BROWSER);
    // The sandbox of the browser does not start for root; the page has no script and comes from this program.
    browser.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2"]);
    browser.arg(format!("--window-size={},{}", WINDOW.0, WINDOW.1));
    browser.arg(format!("--screenshot={}", picture.display())).arg(format!("file://{}", page.display()));
    // Without a desktop, the browser reports services that it does not find.
    process::run(browser.stderr(Stdio::null()))?;
    println!("{}", picture.display());
    Ok(())
}
