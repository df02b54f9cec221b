//! A plain request for an object in memory is answered without hyper. The answer is the same as through hyper, in any
//! order of requests.

use crate::common::*;

/// A plain request gets the same answer as any other on one connection.
#[tokio::test]
async fn plain_requests_answer_alike() {
    let origin = TestOrigin::start().await;
    let headers = ["cache-control: max-age=60", "etag: \"x\"", "x-mine: 1", "x-mine: 2", "cache-status: other; hit"];
    origin.on("/a?b=c", OriginScript::ok(&headers, b"hello"));
    origin.on("/big", OriginScript::ok(&["cache-control: max-age=60"], &[7; 60_000]));
    let proxy = TestProxy::reverse(origin.address).await;
    get(proxy.address, "/a?b=c", &[]).await;
    get(proxy.address, "/big", &[]).await;
    let mut client = TestClient::connect(proxy.address).await;
    let plain = ["GET /a?b=c HTTP/1.1", "Host: h", "Accept: */*"];
    let other = ["GET /a?b=c HTTP/1.1", "Host: h", "X-Other: 1"];
    let sorted = |reply: &ClientReply| {
        let mut headers = reply.headers.clone();
        headers.retain(|(name, _)| name != "age");
        headers.sort();
        (reply.status, headers, reply.text())
    };
    let expected = sorted(&client.ask(&other).await);
    for lines in [&plain, &other, &plain, &plain, &other, &plain] {
        let reply = client.ask(lines).await;
        assert!(reply.is_hit(), "{reply:?}");
        let mut found = sorted(&reply);
        // Ignore the remaining lifetime, which may differ by a second.
        let mut wanted = expected.clone();
        for (_, headers, _) in [&mut found, &mut wanted] {
            headers.iter_mut().filter(|(name, _)| name == "cache-status").for_each(|(_, value)| {
                value.truncate(value.find("ttl=").unwrap_or(value.len()));
            });
        }
        assert_eq!(found, wanted);
    }
    for _ in 0..20 {
        let reply = client.ask(&["GET /big HTTP/1.1", "Host: h"]).await;
        assert!(reply.is_hit() && reply.body == [7; 60_000]);
        // The answers to pipelined requests, both plain and other ones, come in the order of the requests.
        let both = [request(&plain), request(&["GET /big HTTP/1.1", "Host: h"]), request(&other), request(&plain)];
        client.send(both.concat().as_bytes()).await;
        let lengths = [5, 60_000, 5, 5];
        for length in lengths {
            assert_eq!(client.reply(false).await.body.len(), length);
        }
    }
    assert_eq!(origin.count(), 2);
}

#[tokio::test]
async fn slow_reader_keeps_answer_order() {
    let origin = TestOrigin::start().await;
    origin.on("/big", OriginScript::ok(&["cache-control: max-age=60"], &[7; 60_000]));
    origin.on("/small", OriginScript::ok(&["cache-control: max-age=60"], b"small"));
    let proxy = TestProxy::reverse(origin.address).await;
    get(proxy.address, "/big", &[]).await;
    get(proxy.address, "/small", &[]).await;
    let mut client = TestClient::connect(proxy.address).await;
    // All answers are requested before the client reads any of them, and together they are longer than the sockets'
    // buffers.
    let ask = request(&["GET /big HTTP/1.1", "Host: h"]);
    for _ in 0..200 {
        client.send(ask.as_bytes()).await;
        tokio::task::yield_now().await;
    }
    client.send(request(&["GET /small HTTP/1.1", "Host: h"]).as_bytes()).await;
    for _ in 0..200 {
        assert_eq!(client.reply(false).await.body, [7; 60_000]);
    }
    assert_eq!(client.reply(false).await.text(), "small");
}
