//! One order: from the name to its certificate.
//!
//! Owns: the steps of RFC 8555, section 7.4. *Cancel safety*: if the future is dropped, the answers to checks end, and the
//! authority forgets the order after some days.

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Identifier, NewOrder, Order, OrderStatus,
    RetryPolicy,
};
use nectary_config::AcmeChallenge;
use rustls::crypto::CryptoProvider;

use super::challenge_answers::ChallengeAnswers;
use super::issued_certificate::IssuedCertificate;
use super::order_failure::{FailureKind, OrderFailure};

/// The longest time in which the authority must check a name, and in which it must give the certificate.
const WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(120);

/// How much longer each pause between two questions is. The client library gives up before the first pause that would
/// end after [`WAIT_MAX`]; if each were twice the last one, it would ask for the last time after 32 s.
const PAUSE_GROWTH: f32 = 1.3;

/// What an order needs.
pub(crate) struct OrderParts<'a> {
    pub account: &'a Account,
    pub name: &'a str,
    pub challenge: AcmeChallenge,
    /// The certificate that the new one replaces, if the authority wants to know that.
    pub replaces: Option<CertificateIdentifier<'a>>,
    pub answers: &'a ChallengeAnswers,
    pub provider: &'a CryptoProvider,
}

/// A certificate, and the text of its file, which has its private key.
pub(crate) struct OrderedCertificate {
    pub certificate: IssuedCertificate,
    pub pem: String,
}

/// Orders a certificate and waits for it.
pub(crate) async fn order(parts: OrderParts<'_>) -> Result<OrderedCertificate, OrderFailure> {
    let identifiers = [Identifier::Dns(parts.name.to_owned())];
    let mut wanted = NewOrder::new(&identifiers);
    if let Some(replaced) = parts.replaces.clone() {
        wanted = wanted.replaces(replaced);
    }
    let ordered = parts.account.new_order(&wanted).await;
    let mut order = ordered.map_err(|error| OrderFailure::of_new_order(error, parts.name))?;
    let policy = RetryPolicy::new().backoff(PAUSE_GROWTH).timeout(WAIT_MAX);
    prove(&mut order, &parts, &policy).await?;
    let key = order.finalize().await?;
    let chain = order.poll_certificate(&policy).await?;
    let pem = format!("{}\n{chain}", key.trim_end());
    let certificate = IssuedCertificate::read(parts.name, pem.as_bytes(), parts.provider).map_err(|what| {
        OrderFailure::new(FailureKind::Refused, format!("what the authority gave is of no use: {what}"))
    })?;
    Ok(OrderedCertificate { certificate, pem })
}

/// Lets the authority check that the name leads to this proxy.
async fn prove(order: &mut Order, parts: &OrderParts<'_>, policy: &RetryPolicy) -> Result<(), OrderFailure> {
    let refused = |what: String| OrderFailure::new(FailureKind::Refused, what);
    let (kind, kind_name) = match parts.challenge {
        AcmeChallenge::Http01 => (ChallengeType::Http01, "http-01"),
        AcmeChallenge::TlsAlpn01 => (ChallengeType::TlsAlpn01, "tls-alpn-01"),
    };
    // They are dropped when the authority has checked.
    let mut offered = Vec::new();
    let mut authorizations = order.authorizations();
    while let Some(found) = authorizations.next().await {
        let mut authorization = found?;
        match authorization.status {
            AuthorizationStatus::Valid => continue,
            AuthorizationStatus::Pending => {}
            status => return Err(refused(format!("the authority's check of the name is {status:?} before it began"))),
        }
        let Some(mut challenge) = authorization.challenge(kind.clone()) else {
            return Err(refused(format!("the authority does not offer the challenge {kind_name}")));
        };
        let answer = challenge.key_authorization();
        let offer = match parts.challenge {
            AcmeChallenge::Http01 => parts.answers.offer_http(&challenge.token, answer.as_str()),
            AcmeChallenge::TlsAlpn01 => parts.answers.offer_tls(parts.name, answer.digest().as_ref(), parts.provider),
        };
        offered.push(offer.map_err(refused)?);
        challenge.set_ready().await?;
    }
    if order.state().status != OrderStatus::Pending {
        return Ok(());
    }
    match order.poll_ready(policy).await {
        Ok(OrderStatus::Invalid) => Err(why_invalid(order).await.unwrap_or_else(|| {
            OrderFailure::new(FailureKind::Check, "the authority could not check the name, and does not say why")
        })),
        Ok(_) => Ok(()),
        Err(error) => Err(why_invalid(order).await.unwrap_or_else(|| error.into())),
    }
}

/// What the authority says of a check that failed.
async fn why_invalid(order: &mut Order) -> Option<OrderFailure> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        let state = authorization.refresh().await.ok()?;
        let error = state.challenges.iter().find_map(|challenge| challenge.error.clone());
        if let Some(problem) = error {
            let failure = OrderFailure::from(instant_acme::Error::Api(problem));
            return Some(OrderFailure::new(
                FailureKind::Check,
                format!("the authority's check failed: {}", failure.what),
            ));
        }
    }
    None
}
