// Managed by sparkmatrix.cluster (role gateway).
//
// Several engines behind one gateway: which of them a request is for. nginx itself never looks into a body. For njs 0.7.9
// (Debian 12), 0.8.2 (Ubuntu 24.04) and later: ES5 with some of ES6. The engines read a request with Python's json:
// escapes count as what they mean, and of a name that comes twice the last one. JSON.parse does the same.

import SERVED from 'models.js'; // model of each engine, and what to say at paths that are not for it

const MODELS = SERVED.map((one) => one.model);

const INSIDE = '/.sparkmatrix/models/'; // and the number of an engine: asks it for its models

function say(r, status, code, param, message) {
    r.headersOut['Content-Type'] = 'application/json';
    const error = {message: message, type: 'invalid_request_error', param: param, code: code};
    r.return(status, JSON.stringify({error: error}));
}

// njs parses 31 levels; schemas of tools may have more. What is nested is left out, it does not matter here.
function shallow(text) {
    const bytes = Buffer.from(text);
    const kept = [];
    let depth = 0;
    let from = 0;
    for (let at = 0; at < bytes.length; at++) {
        const byte = bytes[at];
        if (byte == 0x22) {
            at = closing(bytes, at + 1);
        } else if (byte == 0x7b || byte == 0x5b) {
            depth++;
            if (depth == 2) {
                kept.push(bytes.slice(from, at).toString(), 'null');
            }
        } else if (byte == 0x7d || byte == 0x5d) {
            depth--;
            if (depth == 1) {
                from = at + 1;
            }
        }
    }
    kept.push(bytes.slice(from).toString());
    return kept.join('');
}

// The quote that ends a string.
function closing(bytes, at) {
    for (;;) {
        at = bytes.indexOf(0x22, at);
        if (at < 0) {
            throw new Error('a string has no end');
        }
        let before = at;
        while (bytes[before - 1] == 0x5c) {
            before--;
        }
        if ((at - before) % 2 == 0) {
            return at;
        }
        at++;
    }
}

function parse(text) {
    try {
        return JSON.parse(text);
    } catch (exc) {
        if (exc.message.indexOf('too deep') < 0) {
            throw exc;
        }
        return JSON.parse(shallow(text));
    }
}

// Which models the engines have now, each with the answer of its engine.
async function ask(r) {
    const asked = MODELS.map((_model, number) => r.subrequest(INSIDE + number, {method: 'GET'}));
    const replies = await Promise.all(asked);
    return replies.map((reply) => {
        let models = null;
        try {
            models = reply.status == 200 ? JSON.parse(reply.responseText).data : null;
        } catch (exc) {
            r.error('an engine answered no list of models: ' + exc.message);
        }
        return {reply: reply, models: Array.isArray(models) ? models : null};
    });
}

// What the gateway says of an engine that does not answer.
function pass(r, reply) {
    r.headersOut['Content-Type'] = 'application/json';
    const status = reply.status == 200 ? 503 : reply.status;
    if (status == 503) {
        r.headersOut['Retry-After'] = '30';
    }
    r.return(status, reply.responseText);
}

// To the engine, if what it does is what the path is for.
function lead(r, number) {
    const refusal = SERVED[number].refusals[r.uri];
    if (refusal) {
        say(r, 404, 'wrong_task', 'model', refusal);
    } else {
        r.internalRedirect('@engine' + number);
    }
}

// A name that is not in the plan may be an adapter's, which the engines list themselves.
async function search(r, model) {
    const engines = await ask(r);
    const found = engines.findIndex((one) => one.models && one.models.some((item) => item && item.id === model));
    const silent = engines.find((one) => !one.models);
    if (found >= 0) {
        lead(r, found);
    } else if (silent) {
        pass(r, silent.reply);
    } else {
        say(r, 404, 'model_not_found', 'model',
            'The model `' + model + '` does not exist. GET /v1/models lists those that do: ' + MODELS.join(', ') + '.');
    }
}

function pick(r) {
    if (r.variables.request_body_file) {
        say(r, 411, 'length_required', null, 'Send the request with its Content-Length, not in many small chunks.');
        return;
    }
    let request = null;
    try {
        request = parse(r.requestText || '');
    } catch (exc) {
        say(r, 400, 'invalid_json', null,
            'The request is no JSON (' + exc.message + '). Several models are served here, and which one is meant'
            + ' stands in its model.');
        return;
    }
    const model = request === null ? null : request.model;
    if (typeof model != 'string') {
        say(r, 400, 'model_required', 'model',
            'Several models are served here: name one in model. There are ' + MODELS.join(', ') + '.');
        return;
    }
    const number = MODELS.indexOf(model);
    if (number >= 0) {
        lead(r, number);
        return;
    }
    return search(r, model);
}

async function models(r) {
    const engines = await ask(r);
    const awake = engines.filter((one) => one.models);
    if (awake.length == 0) {
        pass(r, engines[0].reply);
        return;
    }
    const all = awake.reduce((found, one) => found.concat(one.models), []);
    r.headersOut['Content-Type'] = 'application/json';
    r.return(200, JSON.stringify({object: 'list', data: all}));
}

export default {pick, models};
