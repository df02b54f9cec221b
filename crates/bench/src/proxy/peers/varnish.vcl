# Varnish, for `nectary bench proxy`. Its built-in rules are followed; the options of varnishd are in `varnish.options`.
# Source: "Users Guide: Backend servers", varnish-cache.org.
vcl 4.1;

backend origin {
  .host = "{origin_host}";
  .port = "{origin_port}";
}
