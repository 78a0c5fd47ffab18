"""The store on Redis. Start with `store`; `scripts` and the `.lua` files run inside Redis."""
