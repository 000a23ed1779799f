//! The fictitious shop that the tracer observes: the operations of its services, and their calls.

use super::strings::Word;

/// One operation of a service, which becomes a span.
#[derive(Debug)]
pub(super) struct Operation {
    pub(super) service: Word,
    pub(super) name: Word,
    pub(super) kind: OperationKind,
    pub(super) resource: Word,
    /// The request that is served or made; `None` for queries.
    pub(super) http: Option<Http>,
    /// The operations that it may call.
    pub(super) calls: &'static [&'static Operation],
    /// Its error, when it fails.
    pub(super) failure: OperationFailure,
}

/// An HTTP request.
#[derive(Debug)]
pub(super) struct Http {
    pub(super) method: Word,
    /// The URL without the number at its end, which differs by trace.
    pub(super) url: &'static str,
}

/// How an operation fails.
#[derive(Debug)]
pub(super) struct OperationFailure {
    pub(super) error_type: Word,
    /// The message. If the operation has a URL, the URL follows, so that each message is another text.
    pub(super) message: &'static str,
}

/// The kind of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OperationKind {
    /// Serves a request.
    Web,
    /// Makes a request.
    Http,
    /// Queries the database.
    Db,
    /// Queries the cache.
    Cache,
}

impl OperationKind {
    /// The `type` of the span.
    pub(super) fn span_type(self) -> Word {
        match self {
            OperationKind::Web => const { Word::new("web") },
            OperationKind::Http => const { Word::new("http") },
            OperationKind::Db => const { Word::new("db") },
            OperationKind::Cache => const { Word::new("cache") },
        }
    }

    /// The tag `span.kind`.
    pub(super) fn span_kind(self) -> Word {
        match self {
            OperationKind::Web => const { Word::new("server") },
            OperationKind::Http | OperationKind::Db | OperationKind::Cache => const { Word::new("client") },
        }
    }
}

/// The root operations of traces.
pub(super) static VISITS: [&Operation; 4] = [&SHOW_PRODUCT, &SHOW_CART, &ADD_TO_CART, &CHECK_OUT];

static SHOW_PRODUCT: Operation = serve(
    "shop-web",
    "GET /product/{id}",
    "GET",
    "https://shop.example/product/",
    &[&GET_SESSION, &GET_PRODUCT, &SELECT_PRODUCT, &FETCH_CART],
);

static SHOW_CART: Operation =
    serve("shop-web", "GET /cart/{id}", "GET", "https://shop.example/cart/", &[&GET_SESSION, &FETCH_CART]);

static ADD_TO_CART: Operation =
    serve("shop-web", "POST /cart/{id}", "POST", "https://shop.example/cart/", &[&GET_SESSION, &CHANGE_CART]);

static CHECK_OUT: Operation = serve(
    "shop-web",
    "POST /checkout/{id}",
    "POST",
    "https://shop.example/checkout/",
    &[&GET_SESSION, &FETCH_CART, &CHARGE, &INSERT_ORDER],
);

static FETCH_CART: Operation =
    request("shop-web", "GET /cart/{id}", "GET", "http://cart:8080/cart/", &[&SERVE_FETCH_CART]);

static CHANGE_CART: Operation =
    request("shop-web", "PUT /cart/{id}", "PUT", "http://cart:8080/cart/", &[&SERVE_CHANGE_CART]);

static CHARGE: Operation =
    request("shop-web", "POST /charge/{id}", "POST", "http://payments:8080/charge/", &[&SERVE_CHARGE]);

static SERVE_FETCH_CART: Operation =
    serve("cart", "GET /cart/{id}", "GET", "http://cart:8080/cart/", &[&GET_CART, &SELECT_CART]);

static SERVE_CHANGE_CART: Operation =
    serve("cart", "PUT /cart/{id}", "PUT", "http://cart:8080/cart/", &[&SELECT_CART, &UPDATE_CART]);

static SERVE_CHARGE: Operation =
    serve("payments", "POST /charge/{id}", "POST", "http://payments:8080/charge/", &[&ASK_BANK, &INSERT_PAYMENT]);

static ASK_BANK: Operation = request("payments", "POST /transfers", "POST", "https://bank.example/transfers/", &[]);

static GET_SESSION: Operation = cache("GET session:?");
static GET_PRODUCT: Operation = cache("GET product:?");
static GET_CART: Operation = cache("GET cart:?");

static SELECT_PRODUCT: Operation = query("SELECT name, price, stock FROM products WHERE id = ?");
static SELECT_CART: Operation = query("SELECT product_id, quantity FROM cart_items WHERE cart_id = ?");
static UPDATE_CART: Operation = query("UPDATE cart_items SET quantity = ? WHERE cart_id = ? AND product_id = ?");
static INSERT_ORDER: Operation = query("INSERT INTO orders (cart_id, total) VALUES (?, ?)");
static INSERT_PAYMENT: Operation = query("INSERT INTO payments (order_id, amount, state) VALUES (?, ?, ?)");

const fn serve(
    service: &'static str,
    resource: &'static str,
    method: &'static str,
    url: &'static str,
    calls: &'static [&'static Operation],
) -> Operation {
    Operation {
        service: Word::new(service),
        name: Word::new("web.request"),
        kind: OperationKind::Web,
        resource: Word::new(resource),
        http: Some(Http { method: Word::new(method), url }),
        calls,
        failure: OperationFailure {
            error_type: Word::new("Unavailable"),
            message: "a service did not answer while serving ",
        },
    }
}

const fn request(
    service: &'static str,
    resource: &'static str,
    method: &'static str,
    url: &'static str,
    calls: &'static [&'static Operation],
) -> Operation {
    Operation {
        service: Word::new(service),
        name: Word::new("http.request"),
        kind: OperationKind::Http,
        resource: Word::new(resource),
        http: Some(Http { method: Word::new(method), url }),
        calls,
        failure: OperationFailure { error_type: Word::new("Timeout"), message: "no answer within 3 s from " },
    }
}

const fn query(statement: &'static str) -> Operation {
    Operation {
        service: Word::new("postgres"),
        name: Word::new("db.query"),
        kind: OperationKind::Db,
        resource: Word::new(statement),
        http: None,
        calls: &[],
        failure: OperationFailure {
            error_type: Word::new("Deadlock"),
            message: "deadlock detected, transaction rolled back",
        },
    }
}

const fn cache(command: &'static str) -> Operation {
    Operation {
        service: Word::new("redis"),
        name: Word::new("cache.get"),
        kind: OperationKind::Cache,
        resource: Word::new(command),
        http: None,
        calls: &[],
        failure: OperationFailure { error_type: Word::new("ConnectionReset"), message: "redis closed the connection" },
    }
}
