//! The pages of the addresses for administration.
//!
//! Owns: what each page says. The operators' page is four files that are part of the program (`page/`); they are the
//! same for every proxy, and tell nothing about this one. Their script fetches `/status.json`, which is the document of
//! `nectary status --json` for this proxy and what only the page needs.
//! Leaves to others: who may see a page, and the headers (`nectary-proxy`); the state (`health`).

use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use nectary_host::PartHealth;
use nectary_proxy::{AdminAnswer, AdminPage, AdminPages, LATENCY_BOUNDS_US};
use serde_json::{Value, json};

use super::Report;
use crate::health;
use crate::live::top;

const PLAIN: &str = "text/plain; charset=utf-8";

/// The rows in each list of what is requested from origins most.
const TOP_ROWS: usize = 20;

/// What the pages are made from. There is none while the store is being opened.
pub struct PageSources {
    pub report: Report,
    pub proxy: Arc<OnceLock<health::RunningProxy>>,
}

/// The pages of the addresses for administration.
pub fn pages_of(sources: Arc<OnceLock<PageSources>>) -> AdminPages {
    AdminPages(Arc::new(move |page| match file_of(page) {
        Some((content_type, text)) => answer(true, content_type, text.trim_end()),
        None => match sources.get() {
            Some(sources) => page_of(page, sources),
            None if page == AdminPage::Status => {
                answer(false, "application/json", &json!({ "state": "starting" }).to_string())
            }
            None => answer(page == AdminPage::Health, PLAIN, "starting"),
        },
    }))
}

fn answer(is_good: bool, content_type: &'static str, text: &str) -> AdminAnswer {
    AdminAnswer { is_good, content_type, text: text.to_owned() }
}

/// The type and the text of a page that is the same for every proxy.
fn file_of(page: AdminPage) -> Option<(&'static str, &'static str)> {
    match page {
        AdminPage::Operator => Some(("text/html; charset=utf-8", include_str!("page/page.html"))),
        AdminPage::Style => Some(("text/css; charset=utf-8", include_str!("page/page.css"))),
        AdminPage::Script => Some(("text/javascript; charset=utf-8", include_str!("page/page.js"))),
        AdminPage::Icon => Some(("image/svg+xml", include_str!("page/page.svg"))),
        AdminPage::Status | AdminPage::Metrics | AdminPage::Health | AdminPage::Ready => None,
    }
}

fn page_of(page: AdminPage, sources: &PageSources) -> AdminAnswer {
    match page {
        AdminPage::Status => answer(true, "application/json", &status_document(sources).to_string()),
        AdminPage::Metrics => {
            let text = top::metrics_of(&(sources.report)());
            answer(true, "text/plain; version=0.0.4; charset=utf-8", text.trim_end())
        }
        AdminPage::Ready => {
            let status = (sources.report)();
            let problems = status.problems.iter().map(|problem| format!("\n{}", problem.what)).collect::<String>();
            answer(status.state != PartHealth::Broken, PLAIN, &format!("{}{problems}", status.state.as_str()))
        }
        _ => answer(true, PLAIN, "running"),
    }
}

/// The status of the proxy, and what only the page needs: the time, the release, the bounds of the histograms, and what
/// is requested from origins most.
fn status_document(sources: &PageSources) -> Value {
    let mut document = json!((sources.report)());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    document["at_ms"] = json!(now.as_millis() as u64);
    document["release"] = json!(env!("CARGO_PKG_VERSION"));
    document["latency_bounds_us"] = json!(LATENCY_BOUNDS_US);
    document["origin_traffic"] = json!(sources.proxy.get().map(|running| running.stats.top_traffic(TOP_ROWS)));
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(page: AdminPage) -> &'static str {
        file_of(page).expect("a file").1
    }

    /// URLs are chosen by clients. A script that puts one into the page as markup would let them run scripts there.
    #[test]
    fn texts_never_become_markup() {
        let script = file(AdminPage::Script);
        for word in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc"] {
            assert!(!script.contains(word), "{word}");
        }
        assert!(!script.contains("DOMParser") && !script.contains("createContextualFragment"));
        // Attributes that lead somewhere or run something are set for nothing that came from the network.
        assert!(!script.contains(".href") && !script.contains("\"href\"") && !script.contains("\"on"));
    }

    #[test]
    fn page_needs_nothing_from_elsewhere() {
        let page = file(AdminPage::Operator);
        let sources: Vec<&str> = ["src=\"", "href=\""]
            .iter()
            .flat_map(|name| page.split(name).skip(1).filter_map(|rest| rest.split('"').next()))
            .collect();
        assert!(sources.iter().all(|source| source.starts_with("/page.") || source.starts_with('#')), "{sources:?}");
        assert!(!page.contains("<style") && !page.contains(" style=") && !page.contains(" onclick"));
        assert_eq!(page.matches("<script").count(), page.matches("<script src=\"/page.js\"").count());
        let (style, script) = (file(AdminPage::Style), file(AdminPage::Script));
        assert!(!style.contains("url(") && !style.contains("@import"));
        assert!(!style.contains("://") && !script.contains("://") && !script.contains("import"));
    }

    #[test]
    fn script_finds_every_element() {
        let (page, script) = (file(AdminPage::Operator), file(AdminPage::Script));
        let mut found = 0;
        for id in script.split("byId(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert_eq!(page.matches(&format!("id=\"{id}\"")).count(), 1, "{id}");
            found += 1;
        }
        assert!(found > 20, "{found}");
    }
}
