//! Passes an origin's informational responses to the client whose request the origin is working on.
//!
//! Owns: the choice of the client that receives them: the one whose request was sent to the origin, unless it speaks
//! HTTP/1.0. A client that joins another client's fetch, or is answered from the store or out of parts, receives none. A `100` is
//! passed on, too: the proxy sends no `Expect` to origins, so it has not requested the `100` for itself. *Source*: RFC
//! 9110, 15.2.

use std::rc::Rc;
use std::sync::Arc;

use http::Version;
use http::header::VIA;

use super::request::{ClientRequest, RequestClient};
use crate::rules::hop::remove_hop_by_hop;
use crate::sites::SiteRoute;
use crate::wire::http1::informational::{InformationalResponse, render};
use crate::worker::ProxyWorker;

/// The destination of the informational responses to one request.
pub(super) struct InformationalRelay {
    worker: Rc<ProxyWorker>,
    route: Arc<SiteRoute>,
    /// The client; `None` if it does not get informational responses.
    client: Option<Rc<RequestClient>>,
}

impl ClientRequest {
    /// The destination of informational responses to this request.
    pub(super) fn herald(&self) -> InformationalRelay {
        let is_heard = self.version >= Version::HTTP_11 && self.part.is_none();
        let client = is_heard.then(|| self.client.clone());
        InformationalRelay { worker: self.worker.clone(), route: self.route.clone(), client }
    }
}

impl InformationalRelay {
    /// Makes a herald that passes informational responses to no client.
    pub fn silent(worker: &Rc<ProxyWorker>, route: &Arc<SiteRoute>) -> InformationalRelay {
        InformationalRelay { worker: worker.clone(), route: route.clone(), client: None }
    }

    /// Passes an informational response on, unless one of its lines is not a header. hyper refuses such a response.
    pub fn announce(&self, response: &InformationalResponse) {
        self.worker.stats.informational.add(1);
        let (Some(client), Some(mut headers)) = (&self.client, response.headers()) else { return };
        self.route.adapt(&mut headers);
        remove_hop_by_hop(&mut headers);
        headers.append(VIA, self.worker.via.clone());
        let mut bytes = Vec::new();
        render(response.status, &headers, &mut bytes);
        client.exchange.announce(&bytes);
    }
}
