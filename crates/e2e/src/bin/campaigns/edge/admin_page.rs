//! Opens the operators' page of a proxy under load in Chromium: `e2e-campaigns admin-page`.
//!
//! The exit code is 0 only if the page loads without a complaint, its numbers follow the traffic, texts of clients stay
//! texts, it fits a desktop and a phone, dark and light, with enough contrast, and a purge through its form purges
//! exactly what was reviewed, with a token and without one. It is 77 without Chromium. With `--screenshots docs` it
//! writes `page-light.png` and `page-dark.png` there.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nectary_e2e::browser::Browser;
use nectary_e2e::guard::{self, find_program};
use nectary_e2e::http::{HttpConnection, HttpResponse};
use nectary_e2e::nectary::{NectaryProxy, ProxyCommand};
use nectary_e2e::origin::DeterministicOrigin;
use nectary_e2e::rng::{SeededRng, Zipf};
use nectary_e2e::scratch::{ScratchFolder, free_address};

use crate::rounds::{NotRunPolicy, ProblemCounter, first_line};

/// The longest time until the page shows what is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
const TOKEN: &str = "a-token-for-tests";
const HOST: &str = "www.shop.test";
/// What the purges of the test are about.
const PURGED: &str = "/images/logo.svg?size=4000&tags=logo";
/// The largest picture for the documents. *Units*: bytes.
const PICTURE_BYTES_MAX: u64 = 150 * 1024;
/// A text as a client may choose it, of which nothing may come true.
const HOSTILE: &str = r#"http://h/<img src=x onerror="window.hurt=1"><script>window.hurt=1</script>'"&amp;"#;

/// The lowest contrast of a text, and the expression that lists the texts that have less. *Source*: WCAG 2.2, 1.4.3.
const LOW_CONTRAST: &str = r#"(() => {
  const parse = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((element) => element.checkVisibility()
    && !element.disabled && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== ""));
  return texts.filter((element) => {
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  }).map((element) => element.textContent.trim().slice(0, 40));
})()"#;

/// Opens the operators' page of a proxy in a browser.
#[derive(Args)]
pub struct AdminPageArguments {
    /// Writes pictures for the documents into this folder
    #[arg(long, value_name = "FOLDER")]
    screenshots: Option<PathBuf>,
}

/// Runs the campaign.
pub fn campaign(arguments: &AdminPageArguments) -> Result<ExitCode> {
    let Some(program) = Browser::find() else {
        return Ok(NotRunPolicy::IsAllowed.exit("admin-page", "there is no Chromium (`ci/setup soak` installs it)"));
    };
    let mut problems = ProblemCounter::default();
    for is_token in [true, false] {
        let scratch = ScratchFolder::new("admin-page")?;
        let shop = LoadedProxy::start(&scratch, is_token)?;
        let mut browser = Browser::start(&program, scratch.path())?;
        let words = if is_token { "with a token" } else { "without a token" };
        if let Err(error) = look_at(&mut browser, shop, is_token, arguments.screenshots.as_deref(), &mut problems) {
            problems.add(format!("{words}: {}", first_line(&error)));
        }
        println!("admin-page {words}: {} problems so far", problems.count());
    }
    Ok(problems.exit())
}

/// A proxy of two origins, one of which has a server that is down, under load.
struct LoadedProxy {
    nectary: NectaryProxy,
    admin: SocketAddr,
    _origins: [DeterministicOrigin; 2],
    load: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
}

impl LoadedProxy {
    fn start(scratch: &ScratchFolder, is_token: bool) -> Result<LoadedProxy> {
        let folder = scratch.join("proxy");
        std::fs::create_dir_all(&folder)?;
        let command = ProxyCommand::new(&folder, None)?;
        let origins = [DeterministicOrigin::start()?, DeterministicOrigin::start()?];
        let (admin, down) = (free_address()?, free_address()?);
        std::fs::write(folder.join("token"), TOKEN)?;
        let token = if is_token { format!("token-file = {:?}", folder.join("token")) } else { String::new() };
        let file = folder.join("proxy.toml");
        let text = format!(
            r#"
[[listener]]
address = "{listen}"
[store]
device = {store:?}
size = "256M"
memory = "64M"
[server]
workers = 2
[admin]
listen = "{admin}"
{token}
[origins.shop]
servers = ["{shop}", "http://{down}"]
[origins.images]
servers = ["{images}"]
[[site]]
names = ["{HOST}"]
[[site.route]]
path = "/"
origin = "shop"
[[site.route]]
path = "/cart/"
origin = "shop"
pass = true
[[site.route]]
path = "/images/"
origin = "images"
"#,
            listen = command.listen,
            store = folder.join("store"),
            shop = origins[0].url(),
            images = origins[1].url(),
        );
        std::fs::write(&file, text)?;
        let nectary = command.start_with_file(&file)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (listen, over) = (nectary.listen, is_over.clone());
        let load = std::thread::Builder::new().name("load".to_owned()).spawn(move || load(listen, &over))?;
        Ok(LoadedProxy { nectary, admin, _origins: origins, load: Some(load), is_over })
    }

    fn get(&self, target: &str) -> Result<HttpResponse> {
        get(&mut self.nectary.client(), target)
    }

    /// Stores what is purged, and checks that it is.
    fn store(&self) -> Result<()> {
        self.get(PURGED)?;
        ensure!(self.get(PURGED)?.is_hit(), "{PURGED} is not stored");
        Ok(())
    }
}

impl Drop for LoadedProxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(load) = self.load.take() {
            let _ = load.join();
        }
    }
}

fn get(connection: &mut HttpConnection, target: &str) -> Result<HttpResponse> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    Ok(connection.exchange(request.as_bytes(), "GET")?)
}

/// Requests pages of a shop, some much more often than others, until it is over.
fn load(listen: SocketAddr, is_over: &AtomicBool) {
    let mut connection = HttpConnection::new(listen, Duration::from_secs(10));
    let (mut rng, products) = (SeededRng::new(7), Zipf::new(4000, 0.9));
    while !is_over.load(Ordering::Relaxed) {
        let pick = rng.below(1000);
        let product = products.sample(&mut rng);
        let target = match pick {
            0..20 => format!("/cart/{}?size=900", rng.below(40)),
            20..60 => format!("/search?q=product+{product}&size=6000&nocc"),
            60..90 => format!("/api/stock/{product}?size=200&cc=max-age=1"),
            90..95 => format!("/videos/{}?size=2000000", product % 30),
            95..600 => format!("/images/product-{product}.webp?size={}", 8_000 + 17 * product),
            _ => format!("/products/{product}?size={}", 12_000 + 5 * product),
        };
        // What fails is counted by the proxy, and the next request uses a new connection.
        if get(&mut connection, &target).is_err() {
            connection.close();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Looks at all that the page does.
fn look_at(
    browser: &mut Browser,
    shop: LoadedProxy,
    is_token: bool,
    screenshots: Option<&Path>,
    problems: &mut ProblemCounter,
) -> Result<()> {
    browser.look(1280, 1000, "light")?;
    browser.open(&format!("http://{}/", shop.admin))?;
    if is_token {
        show_token(browser, problems)?;
    }
    browser.wait_for("document.documentElement.dataset.updates >= 3", PATIENCE).context("the page reads nothing")?;
    numbers(browser)?;
    texts(browser, problems)?;
    purges(browser, &shop)?;
    widths(browser, problems)?;
    if let Some(folder) = screenshots.filter(|_| is_token) {
        // The charts show a minute.
        std::thread::sleep(Duration::from_secs(62));
        pictures(browser, folder)?;
    }
    problems.extend(browser.complaints()?);
    if is_token {
        browser.call("Page.reload", serde_json::json!({}))?;
        let is_shown = "!byId(\"content\").hidden && document.documentElement.dataset.updates >= 1";
        browser.wait_for(is_shown, PATIENCE).context("the token is not kept")?;
        browser.evaluate("byId(\"forget\").click()")?;
        browser.wait_for("!byId(\"token-form\").hidden && byId(\"content\").hidden", PATIENCE)?;
        ensure!(browser.evaluate("sessionStorage.length")? == 0, "the token is not forgotten");
        return Ok(());
    }
    drop(shop);
    let is_old = "!byId(\"banner\").hidden && byId(\"banner\").textContent.includes(\"does not answer\")";
    browser.wait_for(is_old, PATIENCE).context("a proxy that has ended")
}

/// Gives the page a wrong token, and then the right one.
fn show_token(browser: &mut Browser, problems: &mut ProblemCounter) -> Result<()> {
    browser.wait_for("!byId(\"token-form\").hidden", PATIENCE).context("no token is wanted")?;
    ensure!(browser.evaluate("byId(\"content\").hidden")? == true, "figures without a token");
    for token in ["a-wrong-token-for-tests", TOKEN] {
        browser.evaluate(&format!("byId(\"token\").value = {token:?}; byId(\"token-form\").requestSubmit()"))?;
        if token != TOKEN {
            let is_refused = "byId(\"token-note\").textContent.includes(\"does not accept\")";
            browser.wait_for(is_refused, PATIENCE).context("a wrong token")?;
        }
    }
    browser.wait_for("!byId(\"content\").hidden", PATIENCE).context("the right token")?;
    // The browser says of each refusal that it is one.
    problems.extend(browser.complaints()?.into_iter().filter(|complaint| !complaint.contains("status of 401")));
    Ok(())
}

/// Waits until every part of the page shows something, and its numbers grow.
fn numbers(browser: &mut Browser) -> Result<()> {
    let before = browser.evaluate("byId(\"request-note\").textContent")?;
    for is_so in [
        format!("byId(\"request-note\").textContent !== {before}"),
        "/^[1-9][0-9.,]* %$/.test(byId(\"hit-ratio\").textContent)".to_owned(),
        "parseFloat(byId(\"request-rate\").textContent) > 0".to_owned(),
        "byId(\"hit-line\").getAttribute(\"d\").length > 10".to_owned(),
        "byId(\"byte-rate\").textContent.includes(\"KiB\") || byId(\"byte-rate\").textContent.includes(\"MiB\")"
            .to_owned(),
        "parseFloat(byId(\"connections\").textContent) > 0".to_owned(),
        "[\"hit\", \"miss\", \"pass\"].every((word) => byId(\"latency-rows\").textContent.includes(word))".to_owned(),
        "byId(\"server-rows\").rows.length === 3".to_owned(),
        "byId(\"server-rows\").querySelectorAll(\"[data-state=failing]\").length === 1".to_owned(),
        "byId(\"state\").textContent === \"degraded\" && byId(\"problem-list\").children.length > 0".to_owned(),
        "byId(\"disk-rows\").querySelectorAll(\"[data-state=healthy]\").length === 1".to_owned(),
        "parseFloat(byId(\"objects\").textContent) > 0".to_owned(),
        "byId(\"miss-rows\").rows.length === 20 && byId(\"weight-rows\").rows.length === 20".to_owned(),
        "byId(\"miss-rows\").textContent.includes(\"www.shop.test/\")".to_owned(),
        "byId(\"weight-rows\").rows[0].textContent.includes(\"/videos/\")".to_owned(),
        "byId(\"origin-rows\").rows.length === 2".to_owned(),
    ] {
        browser.wait_for(&is_so, PATIENCE)?;
    }
    browser.evaluate("byId(\"latency-all\").click()")?;
    browser.wait_for("byId(\"latency-rows\").rows.length > 2", PATIENCE)
}

/// Gives the page texts that would hurt as markup.
fn texts(browser: &mut Browser, problems: &mut ProblemCounter) -> Result<()> {
    let found = browser.evaluate(&format!(
        "(() => {{
          const text = {HOSTILE:?};
          const row = {{ name: text, requests: 1, bytes: 1, error_max: 0 }};
          showTop({{ seconds: 1, urls_by_requests: [row], urls_by_bytes: [row], origins: [row] }});
          showProblems([{{ what: text, do: text }}]);
          showCertificates([{{ names: [text], path: text, not_after_s: 500000 }}], 0);
          complain(text);
          const places = [\"miss-rows\", \"weight-rows\", \"origin-rows\", \"certificate-rows\", \"problem-list\"];
          const shown = [...places, \"banner\"].every((id) => byId(id).textContent.includes(text));
          complain(null);
          const days = byId(\"certificate-rows\").rows[0].cells[2];
          return shown && days.textContent === \"5\" && days.className.includes(\"bad\")
            && document.querySelectorAll(\"img, main script, iframe\").length === 0;
        }})()"
    ))?;
    if found != true {
        problems.add("a hostile text is not shown as it is");
    }
    std::thread::sleep(Duration::from_millis(500));
    if browser.evaluate("window.hurt === undefined")? != true {
        problems.add("a hostile text ran as a script");
    }
    // Should the script ever be wrong, the policy still holds.
    let refused = browser
        .evaluate("(() => { try { document.body.innerHTML = \"x\"; return false } catch { return true } })()")?;
    if refused != true {
        problems.add("the page's policy lets a text become markup");
    }
    browser.complaints()?;
    Ok(())
}

/// Purges by the form in each of its ways, after a review that is given up.
fn purges(browser: &mut Browser, shop: &LoadedProxy) -> Result<()> {
    let url = format!("http://{HOST}{PURGED}");
    let prefix = format!("http://{HOST}/images/logo");
    let ways = [
        ("purge-url", url.as_str(), serde_json::json!({ "url": url }).to_string()),
        ("purge-prefix", prefix.as_str(), serde_json::json!({ "prefix": prefix }).to_string()),
        ("purge-tags", " logo, other", serde_json::json!({ "tags": ["logo", "other"] }).to_string()),
        ("purge-all", "", serde_json::json!({ "all": true }).to_string()),
    ];
    for (way, value, body) in ways {
        shop.store()?;
        let review = format!(
            "byId({way:?}).click(); byId(\"purge-value\").value = {value:?}; byId(\"purge-form\").requestSubmit()"
        );
        browser.evaluate(&review)?;
        browser.wait_for("!byId(\"purge-confirm\").hidden", PATIENCE).context(way)?;
        let shown = browser.evaluate("byId(\"purge-json\").textContent")?;
        ensure!(shown.as_str() == Some(body.as_str()), "{way}: the review shows {shown}, not {body}");
        ensure!(browser.evaluate("document.activeElement.id")? == "purge-cancel", "{way}: the focus is elsewhere");
        browser.evaluate("byId(\"purge-cancel\").click(); byId(\"purge-send\").click()")?;
        std::thread::sleep(Duration::from_millis(200));
        ensure!(shop.get(PURGED)?.is_hit(), "{way}: a purge that was given up was sent");
        browser.evaluate(&format!("{review}; byId(\"purge-send\").click()"))?;
        browser.wait_for("!byId(\"purge-answer\").hidden", PATIENCE).context(way)?;
        let answer =
            browser.evaluate("byId(\"purge-answer\").dataset.good + \" \" + byId(\"purge-answer\").textContent")?;
        ensure!(answer.as_str().is_some_and(|answer| answer.starts_with("yes 200: {\"")), "{way}: {answer}");
        ensure!(!shop.get(PURGED)?.is_hit(), "{way}: it is served after the purge");
    }
    let review = format!(
        "byId(\"purge-soft\").click(); byId(\"purge-url\").click(); byId(\"purge-value\").value = {url:?}; \
         byId(\"purge-form\").requestSubmit()"
    );
    browser.evaluate(&review)?;
    browser.wait_for("!byId(\"purge-confirm\").hidden", PATIENCE).context("a soft purge")?;
    let shown = browser.evaluate("byId(\"purge-json\").textContent")?;
    let body = format!("{{\"url\":{url:?},\"soft\":true}}");
    ensure!(shown.as_str() == Some(body.as_str()), "the review of a soft purge shows {shown}, not {body}");
    browser.evaluate("byId(\"purge-cancel\").click()")?;
    Ok(())
}

/// Looks whether the page fits, and whether its texts can be read.
fn widths(browser: &mut Browser, problems: &mut ProblemCounter) -> Result<()> {
    for (width, height) in [(1280, 1000), (390, 844)] {
        for scheme in ["light", "dark"] {
            browser.look(width, height, scheme)?;
            browser.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")?;
            let page = browser.evaluate("document.documentElement.scrollWidth")?;
            if page.as_u64().is_none_or(|page| page > u64::from(width)) {
                problems.add(format!("the page is {page} wide at a width of {width}"));
            }
            let low = browser.evaluate(LOW_CONTRAST)?;
            if low.as_array().is_none_or(|texts| !texts.is_empty()) {
                problems.add(format!("{scheme} at {width}: too little contrast: {low}"));
            }
        }
    }
    let unnamed = browser.evaluate(
        "[...document.querySelectorAll(\"input, button\")]
          .filter((element) => !element.labels?.length && !element.textContent).length",
    )?;
    if unnamed != 0 {
        problems.add(format!("{unnamed} inputs without a name"));
    }
    Ok(())
}

/// Writes the pictures of the documents.
fn pictures(browser: &mut Browser, folder: &Path) -> Result<()> {
    for scheme in ["light", "dark"] {
        browser.look(1280, 1120, scheme)?;
        browser.evaluate("window.scrollTo(0, 0); byId(\"latency-minute\").click()")?;
        browser.evaluate("new Promise((done) => setTimeout(done, 300))")?;
        let file = folder.join(format!("page-{scheme}.png"));
        std::fs::write(&file, browser.screenshot()?)?;
        if let Some(program) = find_program("pngquant") {
            let mut command = Command::new(program);
            command.args(["--force", "--strip", "--speed", "1", "--output"]).arg(&file).arg("64").arg(&file);
            let (status, text) = guard::run("pngquant", command, &folder.join("pngquant.log"), PATIENCE)?;
            std::fs::remove_file(folder.join("pngquant.log"))?;
            ensure!(status.success(), "pngquant: {text}");
        }
        let bytes = std::fs::metadata(&file)?.len();
        println!("{}: {bytes} bytes", file.display());
        if bytes > PICTURE_BYTES_MAX {
            bail!("{} is larger than {PICTURE_BYTES_MAX} bytes", file.display());
        }
    }
    Ok(())
}
