// When waiting for a result has lasted long enough to look whether anybody still wants it.
//
// The results of all requests wake all who wait. A wait that begins anew with each waking never ends while another request is being
// answered, and a request whose client has left is computed to its end.

#pragma once

#include <chrono>

// Hook: made by server_response::recv_with_timeout when it is called, asked each time it is woken. Inert while one request is answered.
class ostinato_wait_limit {
public:
    explicit ostinato_wait_limit(int seconds) : end_(std::chrono::steady_clock::now() + std::chrono::seconds(seconds)) {}

    bool is_reached() const { return std::chrono::steady_clock::now() >= end_; }

private:
    std::chrono::steady_clock::time_point end_;
};
